// What this client sends to those of other languages, and receives from them: CONNECTION_STRING. tests/interop/azure_pairs.py
// describes it.
using Azure.Core.Amqp;

public static class Pairs
{
    private static readonly string[] Languages = ["python", "javascript", "go", "java", "dotnet"];
    private static readonly TimeSpan Patience = TimeSpan.FromSeconds(100);

    public static async Task Run(string[] arguments)
    {
        await using var client = new ServiceBusClient(arguments[0]);
        await Task.WhenAll(Languages.Select(receiver => Give(client, $"pairs/dotnet/{receiver}")));
        var found = await Task.WhenAll(Languages.Select(sender => Take(client, $"pairs/{sender}/dotnet")));
        Report.Found("pairs", Languages.Zip(found).ToDictionary(pair => pair.First, pair => pair.Second));
    }

    private static async Task Give(ServiceBusClient client, string queue)
    {
        await using var sender = client.CreateSender(queue);
        await sender.SendMessageAsync(new ServiceBusMessage("Zug \U0001f682")
        {
            MessageId = "data", CorrelationId = "correlation", Subject = "subject", ContentType = "text/plain", ReplyTo = "reply", To = "to",
            SessionId = "s", ReplyToSessionId = "r", TimeToLive = TimeSpan.FromHours(1),
            ApplicationProperties = { ["text"] = "value", ["number"] = 7L, ["flag"] = true, ["part"] = 0.5 },
        });
        await sender.SendMessageAsync(Raw("value", AmqpMessageBody.FromValue("größer")));
        await sender.SendMessageAsync(Raw("sequence", AmqpMessageBody.FromSequence([[1, "a"]])));
        await sender.ScheduleMessageAsync(new ServiceBusMessage("later") { MessageId = "scheduled" }, DateTimeOffset.UtcNow.AddSeconds(1));
        await using var sessions = client.CreateSender($"{queue}/session");
        await sessions.SendMessagesAsync(new[] { "1", "2" }.Select(text => new ServiceBusMessage(text) { SessionId = "s" }));
    }

    private static ServiceBusMessage Raw(string id, AmqpMessageBody body)
    {
        var message = new ServiceBusMessage { MessageId = id };
        message.GetRawAmqpMessage().Body = body;
        return message;
    }

    private static async Task<List<ServiceBusReceivedMessage>> Received(ServiceBusReceiver receiver, int count)
    {
        var found = new List<ServiceBusReceivedMessage>();
        while (found.Count < count && await receiver.ReceiveMessagesAsync(count - found.Count, Patience) is { Count: > 0 } more)
            found.AddRange(more);
        return found;
    }

    private static async Task<Dictionary<string, object>> Take(ServiceBusClient client, string queue)
    {
        await using var receiver = client.CreateReceiver(queue);
        var messages = (await Received(receiver, 4)).ToDictionary(message => message.MessageId);
        var (data, value, sequence, scheduled) = (messages["data"], messages["value"], messages["sequence"], messages["scheduled"]);
        await receiver.CompleteMessageAsync(data);
        await receiver.AbandonMessageAsync(value);
        var again = (await Received(receiver, 1)).Single();
        await receiver.CompleteMessageAsync(again);
        await receiver.DeadLetterMessageAsync(sequence, "why", "because");
        await receiver.DeferMessageAsync(scheduled);
        var deferred = await receiver.ReceiveDeferredMessageAsync(scheduled.SequenceNumber);
        await receiver.CompleteMessageAsync(deferred);
        await using var session = await client.AcceptSessionAsync($"{queue}/session", "s");
        var texts = "";
        foreach (var message in await Received(session, 2))
        {
            texts += message.Body;
            await session.CompleteMessageAsync(message);
        }
        await session.SetSessionStateAsync(BinaryData.FromString("dotnet"));
        sequence.GetRawAmqpMessage().Body.TryGetSequence(out var rows);
        return new Dictionary<string, object>
        {
            ["data"] = data.Body.ToString(),
            ["fields"] = new object[]
            {
                data.CorrelationId, data.Subject, data.ContentType, data.ReplyTo, data.To, data.SessionId, data.ReplyToSessionId,
                Math.Round(data.TimeToLive.TotalSeconds),
            },
            ["application"] = data.ApplicationProperties,
            ["value"] = Value(value),
            ["again"] = new[] { Value(again), again.DeliveryCount - value.DeliveryCount },
            ["sequence"] = rows.SelectMany(row => row),
            ["scheduled"] = deferred.Body.ToString(),
            ["session"] = texts,
        };
    }

    private static object Value(ServiceBusReceivedMessage message) =>
        message.GetRawAmqpMessage().Body.TryGetValue(out var value) ? value : null;
}
