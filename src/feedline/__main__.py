"""`python -m feedline` is the same as `feedline`."""

from feedline.cli import main

if __name__ == "__main__":
    main()
