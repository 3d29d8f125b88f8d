"""How a runbook is read: which blocks are files, commands and output, and when output is what was shown."""

from __future__ import annotations

import pytest

from devkit.runbook import Runbook, Step

TEXT = """
```yaml
# job.yaml
job: a
```

```yaml
only: shown
```

```sh
run it
```

```text
read 1,200 rows
…
done in 3.5 s at binlog.000007:42
```

```sh
silent
```
"""


def test_blocks_are_files_steps_and_what_the_steps_print() -> None:
    found = Runbook.parse(TEXT)
    assert found.files == {"job.yaml": "# job.yaml\njob: a\n"}
    shown = ("read 1,200 rows", "…", "done in 3.5 s at binlog.000007:42")
    assert found.steps == (Step("run it\n", shown), Step("silent\n"))


@pytest.mark.parametrize(
    ("printed", "missing"),
    [
        ("read 7 rows\nmore\nand more\ndone in 12 s at binlog.000001:9", None),
        ("first\nread 7 rows\n\ndone in 12 s at binlog.000001:9\nlast", None),
        ("read 7 rows\nx\ndone in 12 s at relay.000001:9", "done in 3.5 s at binlog.000007:42"),
        ("done in 12 s at binlog.000001:9\nread 7 rows", "…"),
        ("read many rows\nx\ndone in 12 s at binlog.000001:9", "read 1,200 rows"),
        ("", "read 1,200 rows"),
    ],
)
def test_lines_shown_must_be_printed_in_their_order(printed: str, missing: str | None) -> None:
    assert Runbook.parse(TEXT).steps[0].missing(printed) == missing
