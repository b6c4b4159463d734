"""Expressions: three-valued logic, the names of messages, errors that help, and bounds."""

import uuid
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lightrail.amqp.sections import Header, Properties
from lightrail.amqp.values import Decimal32, Symbol, Timestamp, ULong
from lightrail.filters.errors import FilterError
from lightrail.filters.lexer import INTEGER_MAX
from lightrail.filters.message import MessageView
from lightrail.filters.sql import compile_expression
from lightrail.model import limits
from tests.support import work
from tests.unit.filters.messages import mutated, view

FULL = view(
    {
        "colour": "red",
        "weight": 17,
        "ratio": 2.5,
        "urgent": True,
        "idle": False,
        "x y": "quoted",
        "a.b": "dotted",
        "kind": Symbol("symbolic"),
        "price": Decimal32(b"1234"),
        "raw": b"\xff",
        "JMSPriority": "mine",
    },
    header=Header(durable=True, priority=7, ttl=1000, delivery_count=2),
    properties=Properties(
        message_id=uuid.UUID(int=5),
        user_id=b"anna",
        to="queue",
        subject="order",
        reply_to="back",
        correlation_id=ULong(17),
        content_type=Symbol("text/plain"),
        content_encoding=Symbol("gzip"),
        absolute_expiry_time=Timestamp(2_000),
        creation_time=Timestamp(1_000),
        group_id="g",
        group_sequence=3,
        reply_to_group_id="rg",
    ),
    annotations={Symbol("x-opt-hop"): 1},
)


def result(expression: str, of: MessageView = FULL) -> bool | None:
    return compile_expression(expression).test(of)


@pytest.mark.parametrize(
    "expression",
    [
        "colour = 'red'",
        "'red' = colour",
        "colour <> 'blue' and colour != 'green'",
        "COLOUR IS NULL",
        "weight > 16 AND weight >= 17 AND weight < 18 AND weight <= 17.0",
        "16 < weight",
        "weight BETWEEN 17 AND 20",
        "weight NOT BETWEEN 18 AND 20",
        "colour IN ('blue', 'red')",
        "colour NOT IN ('blue')",
        "weight IN (1, 17.0, -3)",
        "urgent IN (TRUE)",
        "colour LIKE 'r%'",
        "colour NOT LIKE '_d'",
        "colour LIKE 'r!%' ESCAPE '!' OR TRUE",
        "urgent",
        "NOT idle",
        "urgent = TRUE AND idle <> TRUE",
        "NOT NOT urgent",
        "EXISTS(colour) AND NOT EXISTS(size)",
        "size IS NULL AND colour IS NOT NULL",
        "weight + 3 = 20 AND weight - 20 = -3 AND weight * 2 = 34",
        "weight / 2 = 8 AND weight / 2.0 = 8.5 AND -weight / 2 = -8",
        "weight % 5 = 2 AND -weight % 5 = -2 AND 5.5 % 2 = 1.5",
        "1 + 2 * 3 = 7 AND (1 + 2) * 3 = 9 AND 10 - 4 - 3 = 3",
        "- - weight = 17 AND +weight = 17 AND -(-weight) = 17",
        "ratio = 25E-1 AND ratio = 2.5d AND 0x11 = weight AND 17L = weight AND .5 < ratio AND 7. > ratio",
        "colour = 'red' OR size = 1",
        "(colour = 'red') = TRUE",
        "\"x y\" = 'quoted' AND [x y] = 'quoted' AND a.\"x y\" = 'quoted' AND user.[x y] = 'quoted'",
        "a.b = 'dotted' OR [a.b] = 'dotted'",
        "kind = 'symbolic'",
        "application_properties.colour = 'red' AND a.colour = 'red' AND user.colour = 'red'",
        'm.[x-opt-hop] = 1 AND message_annotations."x-opt-hop" = 1',
        "[JMSPriority] = 'mine' AND JMSPriority = 7",
        "colour > 'blue'",
        "weight > ratio AND NOT ratio > weight",
        "colour = kind OR colour < kind",
    ],
)
def test_expressions_that_are_true(expression: str) -> None:
    assert result(expression) is True


@pytest.mark.parametrize(
    "expression",
    [
        "JMSPriority = 7",
        "JMSTimestamp = 1000 AND JMSExpiration = 2000",
        "JMSType = 'order'",
        "JMSDeliveryMode = 'PERSISTENT'",
        "JMSRedelivered = TRUE AND JMSXDeliveryCount = 3",
        "JMSXGroupID = 'g' AND JMSXGroupSeq = 3 AND JMSXUserID = 'anna'",
        "JMSDestination = 'queue' AND JMSReplyTo = 'back'",
        "JMSMessageID = 'ID:AMQP_UUID:00000000-0000-0000-0000-000000000005'",
        "JMSMessageID = '00000000-0000-0000-0000-000000000005'",
        "JMSCorrelationID = 'ID:AMQP_ULONG:17' AND JMSCorrelationID IN ('ID:AMQP_ULONG:17')",
        "AMQPriority = 7 AND AMQDurable = 'DURABLE' AND AMQTimestamp = 1000 AND AMQExpiration = 2000",
        "amqp.subject = 'order' AND amqp.message_id IS NOT NULL AND amqp.priority = 7",
        "sys.Label = 'order' AND sys.SessionId = 'g' AND sys.ReplyToSessionId = 'rg'",
        "sys.CorrelationId = 17 AND sys.ContentType = 'text/plain' AND sys.TimeToLive = 1000",
        "p.subject = 'order' AND properties.group-id = 'g' AND p.group_sequence - 1 = 2",
        "p.reply-to-group-id = 'rg' AND P.content_type = 'text/plain' AND p.\"content-encoding\" = 'gzip'",
        "header.priority = 7 AND h.ttl = 1000 AND h.durable",
        "NOT h.first_acquirer AND h.delivery-count = 2",
    ],
)
def test_the_names_of_the_message_itself(expression: str) -> None:
    assert result(expression) is True


@pytest.mark.parametrize(
    "expression",
    [
        "colour = 17",
        "colour <> 17",
        "weight = 'red' OR weight <> 'red'",
        "urgent = 1",
        "urgent <> 1",
        "urgent > FALSE",
        "urgent IN (1)",
        "weight IN (TRUE)",
        "weight = TRUE",
        "price = 1 OR price <> 1 OR price = price",
        "weight LIKE '1%'",
        "raw = 'x' OR raw <> 'x'",
        "colour = weight",
        "urgent > idle",
    ],
)
def test_comparisons_of_values_of_different_kinds_are_false(expression: str) -> None:
    assert result(expression) is False


@pytest.mark.parametrize(
    "expression",
    [
        "size = 1",
        "NOT size = 1",
        "size <> 'x'",
        "size",
        "colour",
        "size IN (1, 2)",
        "size LIKE '%'",
        "size BETWEEN 1 AND 2",
        "size = weight",
        "size > TRUE",
        "size = 1 AND urgent",
        "size = 1 OR idle",
        "weight / 0 = 1",
        "weight % 0 = 1",
        "1.0 / 0 = 1",
        "colour + 1 = 2",
        "-colour = 1",
        "urgent + 1 = 2",
        "9223372036854775807 * 4 > 0",
        "1e308 * 10 % 2 = 0",
    ],
)
def test_what_has_no_value_is_unknown(expression: str) -> None:
    assert result(expression) is None


# --- three-valued logic ---------------------------------------------------------------------------------

NAMED: dict[str, bool | None] = {"t": True, "f": False, "u": None}
logic: st.SearchStrategy[Any] = st.recursive(
    st.sampled_from(sorted(NAMED)),
    lambda inner: st.one_of(
        st.tuples(st.just("NOT"), inner),
        st.tuples(st.sampled_from(("AND", "OR")), st.lists(inner, min_size=2, max_size=4)),
    ),
    max_leaves=12,
)


def written(tree: Any) -> str:
    if isinstance(tree, str):
        return tree
    if tree[0] == "NOT":
        return f"NOT ({written(tree[1])})"
    return "(" + f" {tree[0]} ".join(map(written, tree[1])) + ")"


def meaning(tree: Any) -> bool | None:
    if isinstance(tree, str):
        return NAMED[tree]
    if tree[0] == "NOT":
        inner = meaning(tree[1])
        return None if inner is None else not inner
    values = [meaning(each) for each in tree[1]]
    decisive: bool = tree[0] == "OR"
    if decisive in values:
        return decisive
    return None if None in values else not decisive


@given(logic)
def test_and_or_not_follow_the_tables_of_three_valued_logic(tree: Any) -> None:
    assert result(written(tree), view({"t": True, "f": False})) is meaning(tree)


@given(mutated())
def test_no_message_makes_an_expression_raise(data: bytes) -> None:
    text = "a LIKE '%b_' OR b * 2 / a > colour OR JMSXDeliveryCount > 1 OR p.message_id IN ('x', 1) OR NOT b"
    assert compile_expression(text).test(MessageView(data)) in (True, False, None)


# --- what a filter looks at -----------------------------------------------------------------------------


def test_the_paths_are_those_of_the_text_each_once() -> None:
    paths = compile_expression("a = 1 AND (p.subject = 'x' OR a.a > JMSPriority)").paths
    assert [path.text for path in paths] == ["application-properties.a", "subject", "priority"]


@pytest.mark.parametrize(
    ("expression", "equality"),
    [
        ("colour = 'red'", ("application-properties.colour", "red")),
        ("('red' = colour)", ("application-properties.colour", "red")),
        ("JMSMessageID = 'ID:AMQP_ULONG:5'", ("message-id", 5)),
        ("JMSCorrelationID = 'ID:AMQP_BINARY:6162'", ("correlation-id", "ab")),
        ("JMSCorrelationID = 'ID:AMQP_STRING:x:y'", ("correlation-id", "x:y")),
        ("JMSCorrelationID = 'ID:AMQP_UUID:none'", ("correlation-id", "ID:AMQP_UUID:none")),
        ("JMSCorrelationID = 'ID:own'", ("correlation-id", "ID:own")),
        ("JMSDeliveryMode = 'PERSISTENT'", None),
        ("colour <> 'red'", None),
        ("colour = weight", None),
        ("NOT NOT colour = 'red'", None),
    ],
)
def test_an_expression_that_is_one_equality_says_so(expression: str, equality: Any) -> None:
    found = compile_expression(expression).equality
    assert (found and (found[0].text, found[1])) == equality


# --- errors ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("expression", "message"),
    [
        ("", "expected an expression, found nothing, at character 1"),
        ("a =", "expected a literal, a name or (, found the end of the expression, at character 4"),
        ("a = 1 b", "expected AND, OR or the end of the expression, found 'b', at character 7"),
        ("a = 'x", "expected a closing ' of the string, found the end of the expression, at character 5"),
        ('"x = 1', 'expected a name and a closing ", found'),
        ("[] = 1", "expected a name and a closing ], found"),
        ("a ~ 1", "expected an operator, a literal or a name, found '~', at character 3"),
        ("(a = 1", "expected an operator or ), found the end of the expression, at character 7"),
        ("a < b < c", "a comparison has two sides, found '<', at character 7"),
        ("a NOT = 1", "expected BETWEEN, IN or LIKE after NOT, found '=', at character 7"),
        ("a BETWEEN 1 OR 2", "expected AND and the upper bound of BETWEEN, found 'OR', at character 13"),
        ("a IN 1", "expected ( and the values of IN, found '1', at character 6"),
        ("a IN (b)", "expected a literal in the values of IN, found 'b', at character 7"),
        ("a IN (1 2)", "expected , or ) in the values of IN, found '2', at character 9"),
        ("a LIKE b", "expected a pattern in quotes after LIKE, found 'b', at character 8"),
        (
            "a LIKE 'b' ESCAPE 'xx'",
            "expected one character in quotes after ESCAPE, found 'xx', at character 19",
        ),
        ("a LIKE 'b!c' ESCAPE '!'", "expected the escape character before '%', '_' or itself"),
        ("a IS 1", "expected NULL or NOT NULL, found '1', at character 6"),
        ("lower(a) = 'x'", "EXISTS is the only function, found 'lower(', at character 1"),
        ("EXISTS(1)", "expected a name, found '1', at character 8"),
        ("p.colour = 1", "expected a field of p (absolute_expiry_time, content_encoding"),
        ("h.subject = 1", "expected a field of h (delivery_count, durable, first_acquirer, priority, ttl)"),
        ("'x'", "expected a condition, such as a comparison, found a value, at character 1"),
        ("a = 1 AND 5", "expected a condition, such as a comparison, found a value, at character 11"),
        ("a + 'x' = 1", "expected a number or a name in arithmetic, found something else, at character 5"),
        ("-TRUE = a", "expected a number or a name in arithmetic"),
        ("a = 18446744073709551616", "expected a whole number of at most 64 bits"),
        ("a = -9223372036854775809", "expected a whole number of at most 64 bits"),
        ("a = 1" + "0" * 5000, "expected a whole number of at most 64 bits"),
        ("a = 1e999", "expected a number in the range of binary64"),
        ("a = " + "9" * 400 + ".0", "expected a number in the range of binary64"),
        ("[" + "x" * 600 + "] = 1", "expected a name of 1 to 512 bytes, found 600 bytes, at character 1"),
        ("a = NULL", "expected a literal, a name or (, found 'NULL', at character 5"),
    ],
)
def test_errors_say_what_was_expected_what_was_found_and_where(expression: str, message: str) -> None:
    with pytest.raises(FilterError) as caught:
        compile_expression(expression)
    assert message in str(caught.value)


def test_positions_count_characters() -> None:
    with pytest.raises(FilterError) as caught:
        compile_expression("\u00e9\u00e9 = ~")
    assert caught.value.position == 6
    assert caught.value.found == "'~'"


# --- bounds ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "expression",
    [
        "a = '" + "x" * limits.FILTER_EXPRESSION_BYTES + "'",
        "(" * 2_000 + "a = 1" + ")" * 2_000,
        "NOT " * 1_500 + "a",
        "-" * 3_000 + "a = 1",
        "+".join(["a"] * 40) + " = 1",
        " OR ".join(["a=1"] * 900),
        "a IN (" + ",".join(["1"] * 3_000) + ")",
        "NOT (" * 33 + "a = 1" + ")" * 33,
    ],
)
def test_large_and_deep_expressions_are_refused_after_work_that_their_length_bounds(expression: str) -> None:
    def refused() -> None:
        with pytest.raises(FilterError, match="at most"):
            compile_expression(expression)

    assert work.lines(refused) < 100 * len(expression)


def test_expressions_at_the_bounds_work() -> None:
    assert result("(" * 31 + "weight = 17" + ")" * 31) is True
    assert result("+".join(["weight"] * 31) + " = 527") is True
    assert result(" OR ".join(["size=1"] * 300) + " OR urgent") is True


@given(st.text("a'\"[]().,<>=!+-*/% ANDORNOTINLIKE19_$.e", max_size=40))
def test_any_text_compiles_or_is_refused(text: str) -> None:
    try:
        expression = compile_expression(text)
    except FilterError:
        return
    assert expression.test(FULL) in (True, False, None)


def test_whole_numbers_have_at_most_64_bits() -> None:
    assert compile_expression(f"a = {INTEGER_MAX} AND b = -{INTEGER_MAX // 2 + 1}") is not None
    for text in (f"a = {INTEGER_MAX + 1}", f"a = -{INTEGER_MAX // 2 + 2}", "a = " + "9" * 5_000):
        with pytest.raises(FilterError, match="64 bits"):
            compile_expression(text)
