from data.scanning.local import run_local as run_local
