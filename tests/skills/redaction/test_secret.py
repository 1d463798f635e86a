import copy
import dataclasses
import json
import pickle

import orjson
import pytest

from skills.redaction import Secret

VALUE = "correct horse battery"


def test_only_reveal_gives_the_value() -> None:
    secret = Secret("API_KEY", VALUE)
    assert secret.reveal() == VALUE
    shown = [repr(secret), str(secret), f"{secret}", f"{secret!r:>40}", f"{secret:>40}", f"{[secret]} {(secret,)}"]
    shown += ["{} {!r}".format(secret, {"k": secret}), str(dir(secret))]
    assert not [text for text in shown if "horse" in text]
    assert shown[0] == "API_KEY=[secret]"


def test_it_is_neither_pickled_nor_encoded_nor_hashed() -> None:
    secret = Secret("API_KEY", VALUE)
    for protocol in range(pickle.HIGHEST_PROTOCOL + 1):
        with pytest.raises(TypeError, match="not pickled"):
            pickle.dumps(secret, protocol)
    for encode in (json.dumps, orjson.dumps):
        with pytest.raises(TypeError) as caught:
            encode({"k": secret})
        assert "horse" not in str(caught.value)
    with pytest.raises(TypeError):
        hash(secret)
    with pytest.raises(TypeError):
        vars(secret)


def test_copies_and_comparison() -> None:
    @dataclasses.dataclass
    class Holder:
        secret: Secret

    secret = Secret("API_KEY", VALUE)
    assert copy.copy(secret) is secret
    assert dataclasses.asdict(Holder(secret))["secret"] is secret
    assert secret == Secret("OTHER", VALUE)
    assert secret != Secret("API_KEY", VALUE + "!")
    assert secret != VALUE
