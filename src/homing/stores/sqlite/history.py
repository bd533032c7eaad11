"""The identity of a file's history, which changes when commits that this process has seen may be gone."""

from __future__ import annotations


class FileHistory:
    """Remembers which file is open and the newest row that was in it.

    The contents of a file can go back to an earlier state although it stays the same file, for example by the
    command `.restore` of the `sqlite3` shell. Then there are fewer rows than before. That is also the case if
    the newest rows were purged, so the identity changes too often rather than too rarely.
    """

    def __init__(self) -> None:
        self.identity = ""
        self.file = ""
        """The identity of the open file."""
        self._newest_seq = 0
        self._returns = 0
        """Number of times that a row was gone."""

    def opened(self, file: str) -> None:
        """Records which file was opened."""
        self.file = file
        self._newest_seq = 0
        self._update()

    def accepted(self, before: int, after: int) -> bool:
        """Records the seq of the newest row before and after an acceptance.

        Returns True if a newer row was there before.
        """
        is_gone = before < self._newest_seq
        self._newest_seq = after
        return is_gone

    def went_back(self) -> None:
        """Records that a row is gone which was there before."""
        self._returns += 1
        self._update()

    def _update(self) -> None:
        self.identity = f"{self.file}:{self._returns}"
