"""Files: written whole or not at all (`writing`), and read as if a stranger had made them (`reading`)."""

from gtmsm.files.reading import (
    ANYHOW,
    MOST_PIXELS,
    open_picture,
    opened,
    parse_json,
    read_arrays,
    read_json,
    read_lines,
    read_tensors,
    read_yaml,
    refusing,
)
from gtmsm.files.writing import (
    LOCK,
    OURS,
    TEMPORARY,
    as_path,
    locked,
    replacing,
    require_folder,
    require_writable,
    sync,
    write_atomically,
    write_json,
    write_tensors,
)

__all__ = [
    "ANYHOW", "LOCK", "MOST_PIXELS", "OURS", "TEMPORARY", "as_path", "locked", "open_picture", "opened", "parse_json",
    "read_arrays", "read_json", "read_lines", "read_tensors", "read_yaml", "refusing", "replacing", "require_folder",
    "require_writable", "sync", "write_atomically", "write_json", "write_tensors",
]  # fmt: skip
