"""measure.py FILE COMMAND... - runs COMMAND, writes "SECONDS CPU_SECONDS MIB" (its largest resident memory) to FILE, and
exits as it does."""

import resource
import subprocess
import sys
import time

began = time.monotonic()
code = subprocess.run(sys.argv[2:], stdin=subprocess.DEVNULL).returncode
seconds = time.monotonic() - began
usage = resource.getrusage(resource.RUSAGE_CHILDREN)
with open(sys.argv[1], "w") as out:
    out.write(f"{seconds:.4f} {usage.ru_utime + usage.ru_stime:.4f} {usage.ru_maxrss / 1024:.2f}\n")
sys.exit(code)
