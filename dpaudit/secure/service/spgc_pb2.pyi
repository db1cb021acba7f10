from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Optional as _Optional

DESCRIPTOR: _descriptor.FileDescriptor

class Frame(_message.Message):
    __slots__ = ("data",)
    DATA_FIELD_NUMBER: _ClassVar[int]
    data: bytes
    def __init__(self, data: _Optional[bytes] = ...) -> None: ...

class Share(_message.Message):
    __slots__ = ("owner", "step", "split", "terms", "values")
    OWNER_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    SPLIT_FIELD_NUMBER: _ClassVar[int]
    TERMS_FIELD_NUMBER: _ClassVar[int]
    VALUES_FIELD_NUMBER: _ClassVar[int]
    owner: str
    step: int
    split: bytes
    terms: str
    values: bytes
    def __init__(self, owner: _Optional[str] = ..., step: _Optional[int] = ..., split: _Optional[bytes] = ..., terms: _Optional[str] = ..., values: _Optional[bytes] = ...) -> None: ...

class Receipt(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class Wanted(_message.Message):
    __slots__ = ("owner", "step")
    OWNER_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    owner: str
    step: int
    def __init__(self, owner: _Optional[str] = ..., step: _Optional[int] = ...) -> None: ...

class Opened(_message.Message):
    __slots__ = ("releases", "values", "owners")
    RELEASES_FIELD_NUMBER: _ClassVar[int]
    VALUES_FIELD_NUMBER: _ClassVar[int]
    OWNERS_FIELD_NUMBER: _ClassVar[int]
    releases: int
    values: bytes
    owners: bytes
    def __init__(self, releases: _Optional[int] = ..., values: _Optional[bytes] = ..., owners: _Optional[bytes] = ...) -> None: ...
