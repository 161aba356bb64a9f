"""Keeps the books of a run: writes each result, and says at the end what became of every input."""

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import typer
from safetensors.torch import save

from fringe.cli.folder import CONTACT, EXPLANATION, SUMMARY, ResultFolder, described, to_json
from fringe.cli.gather import failed
from fringe.cli.problems import Exit, complain, say
from fringe.cli.record import Explained, Failed, Run, explanation, failed_entry, summary_entry
from fringe.cli.report import Report
from fringe.errors import InputError


class Ledger:
    """The results of one run in their folder. Tensors of an input are let go once it is written."""

    def __init__(self, folder: ResultFolder, run: Run, *, total: int):
        self._folder, self._run, self._total = folder, run, total
        self._entries: list[dict[str, Any]] = []
        self._failures: list[Failed] = []
        self._verdicts: Counter[str] = Counter()
        self._cells: list[Any] = []
        self._report = Report()
        self._write_summary(complete=False)
        for error in folder.unwritten.values():
            raise error  # before hours of work whose results cannot be written

    @property
    def explained(self) -> int:
        return self._verdicts.total()

    def add(self, items: Sequence[Explained | Failed]) -> None:
        """Write a chunk, and the summary so far."""
        for item in items:
            self._add(self._write(item) if isinstance(item, Explained) else item)
        self._write_summary(complete=False)

    def close(self) -> Exit:
        """Write the summary and the overview, report, and say how it went."""
        if self._cells:
            from fringe.cli.pictures import draw_sheet

            sheet = list(self._cells)
            self._folder.attempt(CONTACT, lambda path: draw_sheet(sheet, self._run, self.explained, path))
        document = self._write_summary(complete=True)
        if self._run.options.json:
            typer.echo(to_json(document), nl=False)
        else:
            self._tell()
        for failure in self._failures:
            named = failure.source in failure.reason
            complain(failure.reason if named else f"{failure.source}: {failure.reason}")
        for error in self._folder.unwritten.values():
            complain(described(error))
        if not self._failures and not self._folder.unwritten:
            return Exit.DONE
        return Exit.SOME_FAILED if self.explained else Exit.NOTHING_DONE

    def _write(self, item: Explained) -> Explained | Failed:
        try:
            self._folder.write(self._folder.name_of(item.ref.id), lambda folder: self._fill(item, folder))
        except InputError as error:
            return failed(item.ref, str(error))
        except OSError as error:
            return failed(item.ref, described(error))
        return item

    def _fill(self, item: Explained, folder: Path) -> None:
        tensors = {"values": item.found.values[item.row].contiguous(), "input": item.x.contiguous()}
        (folder / "attribution.safetensors").write_bytes(save(tensors))  # save_file's errors have no number
        if self._run.options.figures:
            from fringe.cli.pictures import draw

            draw(item, self._run, folder)
        (folder / EXPLANATION).write_text(to_json(explanation(item, self._run)), encoding="utf-8")

    def _add(self, item: Explained | Failed) -> None:
        self._report.add([item], self._run)
        if isinstance(item, Failed):
            self._failures.append(item)
            self._entries.append(failed_entry(item))
            return
        self._verdicts[item.found.verdict[item.row]] += 1
        self._entries.append({**summary_entry(item, self._run), "folder": self._folder.name_of(item.ref.id)})
        if self._run.options.figures:
            from fringe.cli.pictures import SHEET, cell

            if len(self._cells) < SHEET:
                self._cells.append(cell(item, self._run))

    def _write_summary(self, *, complete: bool) -> dict[str, Any]:
        counts = {"inputs": self._total, "explained": self.explained, "failed": len(self._failures)}
        document = {
            **self._run.record(),
            "complete": complete,
            "counts": {**counts, "verdicts": dict(self._verdicts)},
            "contact_sheet": CONTACT if complete and self._cells and CONTACT not in self._folder.unwritten else None,
            "inputs": self._entries,
        }
        self._folder.attempt_text(SUMMARY, to_json(document))
        return document

    def _tell(self) -> None:
        self._report.show()
        root, missing = self._folder.root, self._folder.unwritten
        say(f"\npictures: {root / CONTACT}" if self._cells and CONTACT not in missing else "")
        if SUMMARY not in missing:
            say(f"results:  {root / SUMMARY} and a folder an input")
