"""Lock-free protocols on a weakly ordered machine: every execution of small instances is tried,
with the memory orders that the sources have. The test fails if an order is weakened in the sources
or in this file.

The machine (the view semantics of C11 without promises; Armv8's stlr and ldar are as strong): a
location is a list of messages. A thread has a view, the oldest message of each location that it may
still read. A read takes any message from that one on. A release attaches the writer's view to its
message, and an acquire joins it. A sequentially consistent read sees at least the last sequentially
consistent write of its location. A read-modify-write reads the last message.
"""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
RELAXED, ACQUIRE, RELEASE, ACQ_REL, SEQ_CST = "relaxed", "acquire", "release", "acq_rel", "seq_cst"
ORDERS = {RELAXED: 0, ACQUIRE: 1, RELEASE: 2, ACQ_REL: 3, SEQ_CST: 7}  # bits: acquire, release, sc


class Violation(Exception):
    pass


class Machine:
    """Programs are lists of operations (name, ...); registers are numbered, labels are strings.
    run() visits every state once.

    load, await: location, register, (condition of the value,) order. store: location, function of
    the registers, order. update: location, register of the old value, function of it that returns
    the new one or None, order. expect: location, function of the registers; order. jump: condition
    of the registers, label.
    """

    def __init__(self, locations, programs):
        self.location = {n: i for i, n in enumerate(locations)}
        self.programs = [resolved(p) for p in programs]

    def run(self):
        zero = (0,) * len(self.location)
        thread = (0, (0,) * 8, zero)  # position, registers, view
        memory = tuple(((0, zero),) for _ in self.location)
        start = (tuple(thread for _ in self.programs), memory, zero, frozenset())
        seen, stack = {start}, [start]
        while stack:
            state = stack.pop()
            moves = [s for i in range(len(self.programs)) for s in self.step(state, i)]
            if not moves and any(t[0] < len(p) for t, p in zip(state[0], self.programs)):
                raise Violation(f"stuck at {[t[0] for t in state[0]]}")
            for s in moves:
                if s not in seen:
                    seen.add(s)
                    stack.append(s)
        return len(seen)

    def step(self, state, i):
        threads, memory, sc, asleep = state
        at, registers, view = threads[i]
        if at == len(self.programs[i]):
            return
        op, *args = self.programs[i][at]
        if i in asleep:
            return

        def after(at=at + 1, registers=registers, view=view, memory=memory, sc=sc, asleep=asleep):
            done = (at, registers, view)
            return (*threads[:i], done, *threads[i + 1 :]), memory, sc, asleep

        if op == "jump":  # arguments: (condition of the registers, position)
            yield after(at=args[1] if args[0](registers) else at + 1)
            return
        if op == "wake":
            yield after(asleep=frozenset())
            return
        if op == "sleep":  # the kernel compares with the last message and enqueues under one lock
            where = self.location[args[0]]
            same = memory[where][-1][0] == args[1]
            yield after(asleep=asleep | {i} if same else asleep)
            return
        where = self.location[args[0]]
        order = ORDERS[args[-1]]
        messages = memory[where]
        if op in ("load", "await", "expect"):
            least = max(view[where], sc[where] if order & 4 else 0)
            # plain data: exactly one value must be visible, and it must be the expected one
            if op == "expect":
                values = {m[0] for m in messages[least:]}
                if values != {args[1](registers)}:
                    raise Violation(f"{args[0]} reads {values}, expected {args[1](registers)}")
                yield after()
                return
            for n in range(least, len(messages)):
                value, other = messages[n]
                new = put(view, where, n)
                if order & 1:
                    new = joined(new, other)
                if op == "load" or args[2](value):
                    yield after(registers=put(registers, args[1], value), view=new)
            return
        if op == "store":
            value = args[1](registers)
        else:  # update: (location, register of the old value, function; None: no write), order
            old, other = messages[-1]
            registers = put(registers, args[1], old)
            if order & 1:
                view = joined(view, other)
            view = put(view, where, len(messages) - 1)
            value = args[2](old)
            if value is None:
                yield after(registers=registers, view=view)
                return
        n = len(messages)
        if n > 9:
            raise Violation(f"{args[0]} is written again and again")
        new = put(view, where, n)
        attached = new if order & 2 else put((0,) * len(view), where, n)
        # release sequence: a read-modify-write also attaches the view of the message that it read
        if op == "update":
            attached = joined(attached, messages[-1][1])
        memory = put(memory, where, (*messages, (value, attached)))
        yield after(
            registers=registers, view=new, memory=memory, sc=put(sc, where, n) if order & 4 else sc
        )


def resolved(program):
    """Replace labels by positions."""
    at, out = {}, []
    for op in program:
        if isinstance(op, str):
            at[op] = len(out)
        else:
            out.append(op)
    return [(*op[:2], at[op[2]]) if op[0] == "jump" else op for op in out]


def put(values, i, value):
    return (*values[:i], value, *values[i + 1 :])


def joined(a, b):
    return tuple(map(max, a, b))


def const(x):
    return lambda registers: x


# ---- orders of the sources ----

THREADS, SHM = "runtime/threads/threads.c", "runtime/comm/shm_comm.c"
GATE = {  # operation: file, and the source text before the order
    "set": (THREADS, r"atomic_store(?:_explicit)?\(&g->turn, turn"),
    "asleep?": (THREADS, r"if \(atomic_load(?:_explicit)?\(&g->asleep"),
    "asleep": (THREADS, r"atomic_store(?:_explicit)?\(&g->asleep, 1"),
    "again": (THREADS, r"if \(atomic_load(?:_explicit)?\(&g->turn"),
    "now": (THREADS, r"while \(\(now = atomic_load(?:_explicit)?\(&g->turn"),
}
DEAL = {
    "set": GATE["set"],
    "spin": (THREADS, r"if \(atomic_load(?:_explicit)?\(word"),
    "claim": (
        THREADS,
        r"atomic_compare_exchange_strong(?:_explicit)?\(claimed, &before, before \+ 1",
    ),
    "left": (THREADS, r"atomic_fetch_sub(?:_explicit)?\(&t->left, 1"),
    "reset": (THREADS, r"atomic_store(?:_explicit)?\(&t->left, t->n"),
}
SLOTS = {"flag": (SHM, r"atomic_store(?:_explicit)?\(&l->at, v"), "spin": DEAL["spin"]}
TICKETS = {
    "split_kv": (
        "templates/cpu/attention/split_kv.h",
        r"__atomic_add_fetch\(&ticket\[first \* 16\], 1",
    ),
    "norm_route": ("templates/cpu/moe/norm_route.c.in", r"__atomic_add_fetch\(ARG_arrived, 1"),
}


def order(path, before):
    """Return the order of an operation in its file; without an explicit order it is seq_cst."""
    hits = set(re.findall(before + r"(?:, (\w+))?\)", (ROOT / path).read_text()))
    assert len(hits) == 1, f"{path}: {before}: {hits}"
    return hits.pop().lower().removeprefix("memory_order_").removeprefix("__atomic_") or SEQ_CST


def orders(table):
    return {name: order(*where) for name, where in table.items()}


# ---- protocols ----


def gate(o):
    """A thread sleeps unless it sees the value; the setter wakes it if it sees the sleeper."""
    setter = [
        ("store", "data", const(1), RELAXED),
        ("store", "turn", const(1), o["set"]),
        ("load", "asleep", 0, o["asleep?"]),
        ("jump", lambda r: r[0] == 0, "end"),
        ("update", "asleep", 0, const(0), SEQ_CST),
        ("jump", lambda r: r[0] == 0, "end"),
        ("wake",),
        "end",
    ]
    waiter = [
        "again",
        ("load", "turn", 0, o["now"]),
        ("jump", lambda r: r[0] == 1, "end"),
        ("store", "asleep", const(1), o["asleep"]),
        ("load", "turn", 0, o["again"]),
        ("jump", lambda r: r[0] == 1, "again"),
        ("sleep", "turn", 0),
        ("jump", const(True), "again"),
        "end",
        ("expect", "data", const(1), RELAXED),
    ]
    return Machine(("data", "turn", "asleep"), [setter, waiter])


def slots(o):
    """Two ranks exchange three chunks through two slots each."""
    programs = []
    for rank in (0, 1):
        programs.append([])
        for chunk in (1, 2, 3):
            programs[-1] += [
                ("store", f"slot{rank}{chunk & 1}", const(chunk), RELAXED),
                ("store", f"flag{rank}", const(chunk), o["flag"]),
                ("await", f"flag{1 - rank}", 0, lambda v, c=chunk: v >= c, o["spin"]),
                ("expect", f"slot{1 - rank}{chunk & 1}", const(chunk), RELAXED),
            ]
    return Machine(("slot00", "slot01", "slot10", "slot11", "flag0", "flag1"), programs)


def ticket(o):
    """The part that arrives last, of three, reads what all three have stored."""
    part = [
        ("update", "ticket", 0, lambda old: old + 1, o["ticket"]),
        ("jump", lambda r: r[0] < 2, "end"),
        ("store", "ticket", const(0), RELAXED),
        *(("expect", f"data{i}", const(1), RELAXED) for i in range(3)),
        "end",
    ]
    programs = [[("store", f"data{i}", const(1), RELAXED), *part] for i in range(3)]
    return Machine(("ticket", "data0", "data1", "data2"), programs)


def part_of_stage(o, part, stage, name):
    """Claim and run a part; the thread that finishes the last part opens the next stage. There are
    two stages."""
    before = [("expect", f"cell{1 - part}1", const(1), RELAXED)] if stage == 2 else []
    after = (
        [("store", "over", const(2), o["set"])]
        if stage == 2
        else [("store", "left", const(2), o["reset"]), ("store", "open", const(2), o["set"])]
    )
    return [
        ("load", f"claimed{part}", 0, RELAXED),
        ("jump", lambda r: r[0] != stage - 1, name),
        (
            "update",
            f"claimed{part}",
            0,
            lambda old: stage if old == stage - 1 else None,
            o["claim"],
        ),
        ("jump", lambda r: r[0] != stage - 1, name),
        ("expect", "job", const(1), RELAXED),
        *before,
        ("store", f"cell{part}{stage}", const(1), RELAXED),
        ("update", "left", 0, lambda old: old - 1, o["left"]),
        ("jump", lambda r: r[0] > 1, name),
        *after,
        name,
    ]


def deal(o):
    """Two threads run two stages of two parts; a thread may take the other's parts."""

    def stage(thread, number):
        skip = f"{number} is over"
        return [
            *part_of_stage(o, thread, number, f"own {number}"),
            ("load", "open", 0, RELAXED),
            ("jump", lambda r: r[0] != number, skip),
            *part_of_stage(o, 1 - thread, number, f"other {number}"),
            skip,
        ]

    at_least = lambda n: lambda v: v >= n  # noqa: E731
    caller = [
        ("store", "job", const(1), RELAXED),
        ("store", "left", const(2), RELAXED),
        ("store", "open", const(1), o["set"]),
        *stage(0, 1),
        ("await", "open", 0, at_least(2), o["spin"]),
        *stage(0, 2),
        ("await", "over", 0, at_least(2), o["spin"]),
        ("expect", "cell02", const(1), RELAXED),
        ("expect", "cell12", const(1), RELAXED),
    ]
    worker = [
        ("await", "open", 0, at_least(1), o["spin"]),
        ("jump", lambda r: r[0] == 2, "late"),
        *stage(1, 1),
        ("await", "open", 0, at_least(2), o["spin"]),
        "late",
        *stage(1, 2),
    ]
    names = ("job", "open", "over", "left", "claimed0", "claimed1")
    return Machine((*names, "cell01", "cell11", "cell02", "cell12"), [caller, worker])


PROTOCOLS = {"gate": (gate, GATE), "slots": (slots, SLOTS), "deal": (deal, DEAL)}


@pytest.mark.parametrize("name", PROTOCOLS)
def test_every_execution_is_right(name):
    make, table = PROTOCOLS[name]
    assert make(orders(table)).run() > 50


@pytest.mark.parametrize("name", TICKETS)
def test_the_last_part_sees_the_others(name):
    assert ticket({"ticket": order(*TICKETS[name])}).run() > 50


WEAKER = [
    ("gate", "set", RELEASE),  # store buffering: neither thread sees the store of the other
    ("gate", "asleep?", ACQUIRE),
    ("gate", "asleep", RELEASE),
    ("slots", "flag", RELAXED),
    ("slots", "spin", RELAXED),
    ("deal", "set", RELAXED),
    ("deal", "spin", RELAXED),
    ("deal", "left", RELAXED),
    ("deal", "left", RELEASE),
    ("deal", "left", ACQUIRE),
]


@pytest.mark.parametrize("name, operation, weaker", WEAKER)
def test_a_weaker_order_is_found(name, operation, weaker):
    make, table = PROTOCOLS[name]
    with pytest.raises(Violation):
        make({**orders(table), operation: weaker}).run()


@pytest.mark.parametrize("weaker", (RELAXED, ACQUIRE, RELEASE))
def test_a_weaker_ticket_is_found(weaker):
    with pytest.raises(Violation):
        ticket({"ticket": weaker}).run()
