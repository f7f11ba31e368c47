"""Other people's launchers: srun, Ray, process pools, local copies."""
