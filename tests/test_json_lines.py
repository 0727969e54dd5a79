import json
from pathlib import Path

from services import json_lines
from services.json_lines import JsonLines


def test_a_torn_last_line_is_not_there_until_it_is_whole(tmp_path: Path) -> None:
    path = tmp_path / "lines.jsonl"
    path.write_text('{"n": 0}\n{"n": 1')
    lines = JsonLines(path)
    assert lines.look() == 1
    with path.open("a") as file:
        file.write('}\n{"n": 2}\n')
    assert lines.look() == 3
    assert lines.typed(0, 9, dict) == [{"n": 0}, {"n": 1}, {"n": 2}]


def test_what_was_read_once_is_not_read_again(tmp_path: Path) -> None:
    path = tmp_path / "lines.jsonl"
    path.write_text('{"n": 0}\n' * 3)
    lines = JsonLines(path)
    lines.look()
    whole = lines.size
    # Only what comes after the last whole line is looked at: this damage is not seen.
    with path.open("r+b") as file:
        file.write(b"\n\n\n")
    assert lines.look() == 3
    assert lines.size == whole


def test_a_file_that_was_replaced_is_read_anew(tmp_path: Path) -> None:
    path, beside = tmp_path / "lines.jsonl", tmp_path / "beside"
    path.write_text('{"n": 0}\n{"n": 1}\n')
    lines = JsonLines(path)
    lines.look()
    before = lines.lives
    beside.write_text('{"n": 7}\n{"n": 8}\n{"n": 9}\n')
    beside.replace(path)
    assert lines.look() == 3
    assert lines.lives > before
    assert lines.one(0, dict) == {"n": 7}


def test_a_damaged_line_is_none_and_its_neighbours_are_read(tmp_path: Path) -> None:
    path = tmp_path / "lines.jsonl"
    path.write_bytes(b'{"n": 0}\n\xff\xfe broken\n[1]\n{"n": 3}\n')
    lines = JsonLines(path)
    lines.look()
    assert lines.typed(0, 4, dict) == [{"n": 0}, None, None, {"n": 3}]


def test_a_file_that_is_not_there_has_no_lines(tmp_path: Path) -> None:
    lines = JsonLines(tmp_path / "none.jsonl")
    assert lines.look() == 0
    assert lines.raw(0, 10) == []


def test_long_lines_are_read_a_few_at_a_time(tmp_path: Path) -> None:
    path = tmp_path / "lines.jsonl"
    line = json.dumps({"text": "x" * 700_000}) + "\n"
    path.write_text(line * 20)
    read: list[int] = []

    class Watched(JsonLines):
        def raw(self, start: int, stop: int) -> list[bytes]:
            found = super().raw(start, stop)
            read.append(sum(map(len, found)))
            return found

    lines = Watched(path)
    lines.look()
    assert [number for number, _ in lines.since(3, dict)] == list(range(3, 20))
    assert max(read) <= 1 << 22


def test_a_line_that_is_longer_than_any_is_none(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(json_lines, "_LONGEST", 1000)
    monkeypatch.setattr(json_lines, "_CHUNK", 100)
    path = tmp_path / "lines.jsonl"
    path.write_text('{"n": 0}\n' + json.dumps({"n": "x" * 1000}) + '\n{"n": 2}\n')
    lines = JsonLines(path)
    lines.look()
    assert list(lines.since(0, dict)) == [(0, {"n": 0}), (1, None), (2, {"n": 2})]
    assert lines.one(1, dict) is None


def test_each_line_is_followed_once_and_all_again_after_the_file_was_replaced(
    tmp_path: Path,
) -> None:
    path, beside = tmp_path / "lines.jsonl", tmp_path / "beside"
    path.write_text('{"n": 0}\nbroken\n')
    lines, forgotten = JsonLines(path), []
    assert list(lines.follow(dict)) == [(0, {"n": 0})]
    with path.open("a") as file:
        file.write('{"n": 2}\n')
    assert list(lines.follow(dict)) == [(2, {"n": 2})]
    assert list(lines.follow(dict)) == []
    beside.write_text('{"n": 7}\n')
    beside.replace(path)
    assert list(lines.follow(dict, lambda: forgotten.append(1))) == [(0, {"n": 7})]
    assert forgotten == [1]
