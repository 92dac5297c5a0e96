"""The form of the answer to case.PERSON, for clients that take pydantic's models."""

import pydantic


class Person(pydantic.BaseModel):
    """A person."""

    name: str
    age: int
    city: str


NORA = Person(name="Nora", age=34, city="Oslo")
