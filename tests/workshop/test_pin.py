"""workshop/pin.py: the hashes that it writes into lists of requirements. Asks no index."""

import pytest
from weighted_clip.workshop import pin

ONE, TWO, THREE = ("1" * 64, "2" * 64, "3" * 64)
FILES = {
    "pyyaml": {
        "PyYAML-6.0.3.tar.gz": TWO,
        "pyyaml-6.0.3-cp311-cp311-win_amd64.whl": ONE,
        "pyyaml-6.0.30-cp311-cp311-win_amd64.whl": THREE,
        "PyYAML-6.0.zip": THREE,
    },
    "open_clip-torch": {"open-clip_torch-3.3.0.tar.gz": ONE, "open_clip_torch-3.3.0-1-py3-none-any.whl": THREE},
}


def files_of(name: str) -> list[dict]:
    return [{"filename": filename, "hashes": {"sha256": one}} for filename, one in FILES[name].items()]


def test_each_requirement_gets_the_hashes_of_its_version_and_all_else_stays() -> None:
    text = (
        "# why\n-r other.txt\ntorch==2.13.0\npyyaml[all]==6.0.3 ; os_name == 'nt'\n\n# below\nopen_clip-torch==3.3.0\n"
    )
    expected = (
        "# why\n-r other.txt\ntorch==2.13.0\n"
        f"pyyaml[all]==6.0.3 ; os_name == 'nt' \\\n    --hash=sha256:{ONE} \\\n    --hash=sha256:{TWO}\n"
        f"\n# below\nopen_clip-torch==3.3.0 \\\n    --hash=sha256:{ONE} \\\n    --hash=sha256:{THREE}\n"
    )
    assert pin.pinned(text, files_of) == expected
    assert pin.pinned(expected, files_of) == expected
    older = expected.replace("6.0.3 ;", "6.0.30 ;")
    assert pin.pinned(older, files_of).count(THREE) == 2 and TWO not in pin.pinned(older, files_of)


def test_a_version_that_nobody_has_published_is_named() -> None:
    with pytest.raises(SystemExit, match=r"pyyaml==9\.9: the index has no file of this version"):
        pin.pinned("pyyaml==9.9\n", files_of)
