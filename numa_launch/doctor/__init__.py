"""Say what is wrong: can this process be bound here, will it be, and if not, what is the one thing to do.

A check is a function that returns a Check; ``examine`` runs them all. It may use reading, planning and applying.
"""
