"""Opens strangers' files in a process of its own that may not take much memory."""

import subprocess
import sys
import textwrap
from pathlib import Path

_SCRIPT = textwrap.dedent("""
    import re, resource, sys
    from pathlib import Path
    import numpy as np
    from wkvm.errors import FileError, FormatError, UnsupportedError
    from wkvm.formats.load import load_model
    used = int(re.search(r"VmSize:\\s+(\\d+)", Path("/proc/self/status").read_text())[1]) << 10
    limit = used + (int(sys.argv[2]) << 20)
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    for path in sorted(Path(sys.argv[1]).iterdir()):
        try:
            load_model(path)
            print(path.name, "loaded")
        except (FileError, FormatError, UnsupportedError) as error:
            lines = str(error).splitlines()
            print(path.name, "refused" if len(lines) == 1 else "FAILED", lines[:1])
        except BaseException as error:
            print(path.name, "FAILED", repr(error)[:200])
""")


def outcomes(folder: Path, headroom: int = 200) -> dict[str, str]:
    """Entry of `folder` -> ``loaded``, ``refused ...`` or ``FAILED ...``: how loading it ends.

    A refusal is a typed error of one line. The process may take `headroom` MiB.
    """
    done = subprocess.run(
        [sys.executable, "-c", _SCRIPT, str(folder), str(headroom)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    found = dict(line.split(" ", 1) for line in done.stdout.splitlines())
    assert found.keys() == {entry.name for entry in folder.iterdir()}
    return found
