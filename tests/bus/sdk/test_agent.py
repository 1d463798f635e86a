"""The errors of a2a-sdk, to the bus and back."""

import pytest
from a2a.client.errors import A2AClientError, A2AClientTimeoutError
from a2a.types import a2a_pb2 as pb
from a2a.utils.errors import JSON_RPC_ERROR_CODE_MAP, A2AError, InvalidParamsError, TaskNotFoundError

import bus
from bus.sdk.agent import REQUESTS, as_json, read, sdk_errors, to_bus, to_sdk


def test_every_operation_has_its_request() -> None:
    assert set(REQUESTS) == bus.OPERATIONS


@pytest.mark.parametrize("kind", JSON_RPC_ERROR_CODE_MAP)
def test_an_error_comes_back_as_it_was(kind: type[A2AError]) -> None:
    error = kind("because", data={"why": "so"})
    travelling = bus.from_json(to_bus(error).as_json())
    assert travelling.code == JSON_RPC_ERROR_CODE_MAP[kind]
    back = to_sdk(travelling)
    assert type(back) is kind
    assert (back.message, back.data) == ("because", {"why": "so"})


def test_which_field_is_wrong_comes_back() -> None:
    data = {"errors": [{"field": "id", "message": "Field is required."}]}
    back = to_sdk(bus.from_json(to_bus(InvalidParamsError(data=data)).as_json()))
    assert back.data == data


def test_an_error_of_a_kind_of_its_own() -> None:
    class Lost(TaskNotFoundError):
        message = "lost"

    class Odd(A2AError):
        message = "odd"

    assert isinstance(to_bus(Lost()), bus.TaskNotFound)
    assert isinstance(to_bus(Odd(data={"count": 3})), bus.InternalError)
    assert to_bus(Odd(data={"count": 3})).metadata == {"count": "3"}


@pytest.mark.parametrize("code", bus.ERRORS)
def test_every_error_of_the_bus_is_one_of_the_sdk(code: int) -> None:
    error = bus.ERRORS[code]("because", metadata={"retryAfterMs": "5"})
    with pytest.raises(A2AError) as caught, sdk_errors():
        raise error
    assert caught.value.__cause__ is error
    assert "because" in str(caught.value)
    assert caught.value.data == {"retryAfterMs": "5"}


def test_what_only_a_caller_can_meet() -> None:
    assert isinstance(to_sdk(bus.DeadlineExceeded(metadata={"local": "true"})), A2AClientTimeoutError)
    assert not isinstance(to_sdk(bus.DeadlineExceeded()), A2AClientTimeoutError)
    assert isinstance(to_sdk(bus.ConnectionLost()), A2AClientError)
    assert isinstance(to_sdk(bus.StreamCut(task_id="t")), A2AClientError)


def test_reading_and_writing() -> None:
    task = read({"id": "t", "status": {"state": "TASK_STATE_WORKING"}, "newerThanThis": 1}, pb.Task())
    assert as_json(task) == {"id": "t", "status": {"state": "TASK_STATE_WORKING"}}
    with pytest.raises(bus.InvalidParams):
        read({"id": 7}, pb.Task())
