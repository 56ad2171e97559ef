"""`python -m mrope` is the console command `mrope`."""

from mrope.cli import main

if __name__ == "__main__":
    main()
