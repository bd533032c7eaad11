"""The identity of a file's history, which changes when commits that this process has seen may be gone."""

from __future__ import annotations


class FileHistory:
    """Remembers which file is open and the newest row that was in it.

    The contents of a file can go back to an earlier state without any sign, for example by the command
    `.restore` of the `sqlite3` shell. Then there are fewer rows than before. That is also the case if the
    newest rows were purged, so the identity changes too often rather than too rarely.
    """

    def __init__(self) -> None:
        self.identity = ""
        self.file = ""
        """The identity of the open file."""
        self._newest_seq = 0
        self._returns = 0
        """Number of times that the newest row was gone."""

    def opened(self, file: str) -> None:
        """Records which file was opened."""
        self.file = file
        self._newest_seq = 0
        self._update()

    def accepted(self, before: int, after: int) -> bool:
        """Records the seq of the newest row before and after an acceptance.

        Returns True if a newer row was there before, so that the history has gone back.
        """
        went_back = before < self._newest_seq
        self._newest_seq = after
        if went_back:
            self._returns += 1
            self._update()
        return went_back

    def _update(self) -> None:
        self.identity = f"{self.file}:{self._returns}"
