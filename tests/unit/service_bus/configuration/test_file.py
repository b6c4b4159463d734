"""Config.json: what is read of it, its defaults, and what is said of each place that can't be used."""

import json
from pathlib import Path
from typing import Any

import pytest

from lightrail.service_bus.configuration.file import (
    CONFIGURATION_BYTES_MAX,
    EVERYTHING,
    PROBLEMS_SHOWN,
    QUEUE,
    SUBSCRIPTION,
    TOPIC,
    ConfigFileError,
    load,
    read,
    without_comments,
)

SAMPLE = """\ufeff{
  // The documentation's sample, shorter.
  "UserConfig": {
    "Namespaces": [{
      "Name": "sbemulatorns", /* the only
                                 name */
      "Queues": [
        {"Name": "queue.1", "Properties": {
          "DeadLetteringOnMessageExpiration": true, "DefaultMessageTimeToLive": "PT1H",
          "DuplicateDetectionHistoryTimeWindow": "PT20S", "ForwardDeadLetteredMessagesTo": "",
          "ForwardTo": "", "LockDuration": "PT1M", "MaxDeliveryCount": 5, "RequiresDuplicateDetection": false,
          "RequiresSession": false}},
        {"Name": "http://not//a comment"},
      ],
      "Topics": [{
        "Name": "topic.1",
        "Properties": {"DefaultMessageTimeToLive": "PT30M"},
        "Subscriptions": [
          {"Name": "subscription.1", "Rules": [
            {"Name": "sql", "Properties": {"FilterType": "Sql",
              "SqlFilter": {"SqlExpression": "sys.MessageId = '123456' AND userProp1 = 'value1'"},
              "Action": {"SqlExpression": "SET sys.To = 'Entity'"}}},
            {"Name": "correlated", "Properties": {"FilterType": "Correlation", "CorrelationFilter": {
              "ContentType": "application/text", "Properties": {"prop1": "value1", "n": 3, "f": true}}}}]},
          {"Name": "subscription.2"}]
      }]
    }],
    "Logging": {"Type": "File"}
  }
}
"""


def test_the_sample_of_the_documentation_is_read() -> None:
    text = SAMPLE.replace("http://not//a comment", "queue.2")
    one, two, topic, first, second = read(text)
    assert (one.kind, one.path) == (QUEUE, "queue.1")
    assert (one.properties["MaxDeliveryCount"], one.properties["DeadLetteringOnMessageExpiration"]) == (
        "5",
        "true",
    )
    assert (two.path, two.place) == ("queue.2", "UserConfig.Namespaces[0].Queues[1]")
    assert (topic.kind, topic.path, topic.properties["DefaultMessageTimeToLive"]) == (
        TOPIC,
        "topic.1",
        "PT30M",
    )
    assert (first.kind, first.path) == (SUBSCRIPTION, "topic.1/subscriptions/subscription.1")
    assert list(first.rules) == ["sql", "correlated"]
    assert first.rules["sql"]["Action"] == {"SqlExpression": "SET sys.To = 'Entity'"}
    assert first.rules["correlated"]["CorrelationFilter"] == {
        "ContentType": "application/text",
        "Properties": {"prop1": "value1", "n": 3, "f": True},
    }
    assert second.rules == {"$Default": EVERYTHING}


def test_properties_that_are_not_there_have_the_defaults_of_the_schema() -> None:
    (queue,) = read(config(queues=[{"Name": "q"}]))
    assert queue.properties == {
        "DeadLetteringOnMessageExpiration": "false",
        "DefaultMessageTimeToLive": "PT1H",
        "LockDuration": "PT1M",
        "MaxDeliveryCount": "3",
        "RequiresSession": "false",
        "ForwardTo": "",
        "ForwardDeadLetteredMessagesTo": "",
        "RequiresDuplicateDetection": "false",
        "DuplicateDetectionHistoryTimeWindow": "PT20S",
    }


def test_comments_are_no_texts_and_texts_are_no_comments() -> None:
    text = '{"a": "// no /* comment */", "b\\"//": 1, /* , } */ "c": [1, /* last */ ], // end }\n}'
    assert json.loads(without_comments(text)) == {"a": "// no /* comment */", 'b"//': 1, "c": [1]}
    assert len(without_comments(text)) == len(text), "errors have the places of the file"


def test_a_mistake_in_the_json_has_its_line() -> None:
    with pytest.raises(ConfigFileError, match=r"the file is no JSON: .*line 3 column"):
        read('{\n  // a comment\n  "UserConfig": }')


def config(queues: Any = (), topics: Any = (), **more: Any) -> str:
    namespace = {"Name": "sbemulatorns", "Queues": list(queues), "Topics": list(topics)}
    return json.dumps({"UserConfig": {"Namespaces": [namespace], **more}})


def queue(**properties: Any) -> str:
    return config(queues=[{"Name": "q", "Properties": properties}])


def rule(**properties: Any) -> str:
    rules = [{"Name": "r", "Properties": properties}]
    return config(topics=[{"Name": "t", "Subscriptions": [{"Name": "s", "Rules": rules}]}])


AT = "UserConfig.Namespaces[0]"
OF_RULE = f"{AT}.Topics[0].Subscriptions[0].Rules[0].Properties"


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("[]", "the file: expected an object, found []"),
        ("{}", "the file: expected the member UserConfig, found none"),
        (
            '{"UserConfig": {"Logging": {"Type": "File"}}}',
            "UserConfig: expected the member Namespaces, found none",
        ),
        (
            '{"UserConfig": {"Namespaces": []}}',
            "UserConfig.Namespaces: expected one namespace, found 0 namespaces",
        ),
        ('{"UserConfig": {"Namespaces": 1}}', "UserConfig.Namespaces: expected a list, found 1"),
        (config(queues=[{}]), f"{AT}.Queues[0]: expected the member Name, found none"),
        (
            config(queues=[{"Name": ""}]),
            f"{AT}.Queues[0].Name: expected a name that can be used (the name is empty",
        ),
        (config(queues=[{"Name": 7}]), f"{AT}.Queues[0].Name: expected a text, found 7"),
        (
            config(queues=[{"Name": "q"}, {"Name": "Q"}]),
            f"{AT}.Queues[1].Name: expected another name than that of",
        ),
        (
            config(queues=[{"Name": "q"}], topics=[{"Name": "q"}]),
            f"{AT}.Topics[0].Name: expected another name than",
        ),
        (
            config(queues=[{"Name": "q", "Propertys": {}}]),
            f"{AT}.Queues[0].Propertys: expected one of Name, Properties",
        ),
        (queue(LockDuratio="PT1M"), f"{AT}.Queues[0].Properties.LockDuratio: expected one of"),
        (
            queue(AuthorizationRules=[{"KeyName": "k"}]),
            f"{AT}.Queues[0].Properties.AuthorizationRules: expected one of",
        ),
        (queue(LockDuration="1m"), f"{AT}.Queues[0].Properties.LockDuration: expected a duration of days"),
        (queue(LockDuration="P1Y"), "expected a duration of days"),
        (queue(LockDuration="PT4S"), "a duration of PT5S or longer"),
        (queue(LockDuration="PT5M1S"), 'expected a duration from PT5S to PT5M, found "PT5M1S"'),
        (queue(LockDuration=60), f"{AT}.Queues[0].Properties.LockDuration: expected a text, found 60"),
        (queue(DuplicateDetectionHistoryTimeWindow="P8D"), "expected a duration from PT5S to P7D"),
        (
            queue(MaxDeliveryCount=0),
            f"{AT}.Queues[0].Properties.MaxDeliveryCount: expected a whole number from 1",
        ),
        (queue(MaxDeliveryCount=True), "expected a whole number from 1"),
        (queue(RequiresSession="true"), 'Properties.RequiresSession: expected true or false, found "true"'),
        (
            config(topics=[{"Name": "t", "Properties": {"LockDuration": "PT1M"}}]),
            "Topics[0].Properties.LockDuration",
        ),
        (
            config(topics=[{"Name": "t", "Subscriptions": [{"Name": "a/b"}]}]),
            "Subscriptions[0].Name: expected a name",
        ),
        (rule(), f"{OF_RULE}: expected the member FilterType, found none"),
        (rule(FilterType="Regex"), f"{OF_RULE}.FilterType: expected Sql or Correlation, found 'Regex'"),
        (
            rule(FilterType="Sql"),
            f"{OF_RULE}: expected SqlFilter, as FilterType is Sql, found no such member",
        ),
        (
            rule(FilterType="Sql", SqlFilter={}),
            f"{OF_RULE}.SqlFilter: expected the member SqlExpression, found none",
        ),
        (
            rule(FilterType="Correlation", CorrelationFilter={}),
            f"{OF_RULE}.CorrelationFilter: expected at least one",
        ),
        (
            rule(FilterType="Correlation", CorrelationFilter={"Properties": {"p": []}}),
            f"{OF_RULE}.CorrelationFilter.Properties.p: expected a text, a number or a boolean, found []",
        ),
        (queue(UserMetadata="\ud800"), "Properties.UserMetadata: expected a text without control characters"),
        (
            rule(FilterType="Correlation", CorrelationFilter={"Properties": {"p": "\0"}}),
            f"{OF_RULE}.CorrelationFilter.Properties.p: expected a text without control characters",
        ),
        (
            rule(FilterType="Correlation", CorrelationFilter={"Properties": {"\0": 1}}),
            f"{OF_RULE}.CorrelationFilter.Properties: expected a text without control characters",
        ),
    ],
)
def test_every_mistake_names_its_place(text: str, problem: str) -> None:
    with pytest.raises(ConfigFileError) as error:
        read(text)
    assert problem in str(error.value)


def test_several_mistakes_are_told_at_once_but_not_thousands() -> None:
    text = config(
        queues=[{"Name": f"q{n}", "Properties": {"LockDuration": 1}} for n in range(PROBLEMS_SHOWN + 5)]
    )
    with pytest.raises(ConfigFileError) as error:
        read(text)
    lines = str(error.value).split("\n")
    assert len(lines) == PROBLEMS_SHOWN + 1
    assert lines[-1] == "and 5 more"


def test_a_file_is_small_text_that_can_be_read(tmp_path: Path) -> None:
    path = tmp_path / "Config.json"
    with pytest.raises(ConfigFileError, match="can't be read"):
        load(str(path))
    path.write_text(config(queues=[{"Name": "q"}]))
    assert [each.path for each in load(str(path))] == ["q"]
    path.write_text(" " * (CONFIGURATION_BYTES_MAX + 1))
    with pytest.raises(ConfigFileError, match="at most"):
        load(str(path))
    path.write_bytes(b"\xff")
    with pytest.raises(ConfigFileError, match="can't be read"):
        load(str(path))
