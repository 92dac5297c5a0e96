"""Dates, weekdays, ages."""

import calendar
import datetime

from task import Task
from tasks_numbers import subtract_steps
from words import JOBS, MONTHS, NAMES, WEEKDAYS


def ordinal_date(day):
    return f"{day.day} {MONTHS[day.month - 1]} {day.year}"


def random_day(rng):
    return datetime.date(2000, 1, 1) + datetime.timedelta(rng.randrange(365 * 40))


def next_day(rng):
    day = random_day(rng)
    if rng.random() < 0.5:
        day = day.replace(day=calendar.monthrange(day.year, day.month)[1])
    after = day + datetime.timedelta(1)
    last = calendar.monthrange(day.year, day.month)[1]
    why = f"{MONTHS[day.month - 1]} {day.year} has {last} days. "
    return Task(
        "dates",
        f"after {day}",
        f"Which date comes {rng.choice(['after', 'right after', 'the day after'])} {ordinal_date(day)}?",
        f"{ordinal_date(after)}",
        why + f"After day {day.day} comes {ordinal_date(after)}.",
        "",
        "text",
        ordinal_date(after),
    )


def iso_date(rng):
    day = random_day(rng)
    if rng.random() < 0.5:
        return Task(
            "dates",
            f"iso {day}",
            f"Write {ordinal_date(day)} as YYYY-MM-DD.",
            f"{day}",
            f"{MONTHS[day.month - 1]} is month {day.month}: {day}.",
            "",
            "text",
            f"{day}",
        )
    return Task(
        "dates",
        f"iso {day}",
        f"Write {day} with the month in words.",
        ordinal_date(day),
        f"Month {day.month} is {MONTHS[day.month - 1]}.",
        "",
        "text",
        ordinal_date(day),
    )


def weekday(rng):
    start, n = rng.randrange(7), rng.randint(1, 40)
    back = rng.random() < 0.3
    name = WEEKDAYS[(start + (-n if back else n)) % 7]
    rest = n % 7
    order = WEEKDAYS[::-1] if back else WEEKDAYS
    first = order.index(WEEKDAYS[start])
    walk = ", ".join(order[(first + i) % 7] for i in range(rest + 1))
    word = "before" if back else "after"
    work = (f"{n} = 7 x {n // 7} + {rest}. " if n > 6 else "") + f"{walk}."
    return Task(
        "dates",
        f"{start}{word}{n}",
        f"Which weekday is {n} day{'s' if n > 1 else ''} {word} {WEEKDAYS[start]}?",
        f"{name}",
        work,
        "",
        "text",
        name,
    )


def leap_year(rng):
    year = rng.randint(1900, 2100)
    leap = calendar.isleap(year)
    if year % 4:
        why = f"{year} is 4 x {year // 4} + {year % 4}: not a multiple of 4."
    else:
        why = f"{year} is 4 x {year // 4}" + (
            "." if year % 100 else f", a century; {'a' if leap else 'not a'} multiple of 400."
        )
    return Task(
        "dates",
        f"leap {year}",
        f"Is {year} a leap year?",
        f"{'Yes' if leap else 'No'}, {year} is {'a' if leap else 'not a'} leap year.",
        why,
        "",
        "text",
        "Yes" if leap else "No",
    )


def month_days(rng):
    m = rng.randrange(12)
    year = rng.randrange(2000, 2040)
    days = calendar.monthrange(year, m + 1)[1]
    return Task(
        "dates",
        f"days {m} {year}",
        f"How many days does {MONTHS[m]} {year} have?",
        f"{MONTHS[m]} {year} has {days} days.",
        (f"{year} is {'a' if calendar.isleap(year) else 'not a'} leap year. " if m == 1 else "") + f"{days} days.",
        "",
        "text",
        f"{days} days",
    )


def age(rng):
    year, later = rng.randint(1940, 2020), rng.randint(1, 60)
    name, job = rng.choice(NAMES), rng.choice(JOBS)
    text = f"{name} the {job} was born in {year}. How old was {name} in {year + later}?"
    return Task(
        "dates",
        f"{year + later}-{year}",
        text,
        f"{later} years old.",
        f"{year + later} - {year} = {later}.",
        subtract_steps(year + later, year) + ".",
        "number",
        later,
    )
