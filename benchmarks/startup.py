"""How long a person waits before anything happens: `import diffmask` and `diffmask --help`, best of several."""

import subprocess
import sys
import time

LIMITS = {"import diffmask": 0.2, "diffmask --help": 0.5}


def seconds(arguments: list[str]) -> float:
    start = time.perf_counter()
    subprocess.run([sys.executable, *arguments], check=True, capture_output=True)
    return time.perf_counter() - start


def best(arguments: list[str], tries: int = 7) -> float:
    return min(seconds(arguments) for _ in range(tries))


def main() -> None:
    bare = best(["-c", "pass"])
    durations = {
        "import diffmask": best(["-c", "import diffmask"]) - bare,
        "diffmask --help": best(["-m", "diffmask", "--help"]),
    }
    print(f"Python alone: {bare:.3f} s")
    for name, value in durations.items():
        print(f"{name}: {value:.3f} s, must be <= {LIMITS[name]} s: {'yes' if value <= LIMITS[name] else 'NO'}")


if __name__ == "__main__":
    main()
