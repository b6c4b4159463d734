// What messages carry: every type of a property, bodies of all kinds, sections of AMQP, fields that are null or empty.
using Azure.Core.Amqp;

public static class Bodies
{
    public static async Task Run(Scene scene)
    {
        var queue = await scene.Queue("messages");
        await using var client = new ServiceBusClient(scene.ConnectionString, Report.Once());
        var (sender, receiver) = (client.CreateSender(queue), client.CreateReceiver(queue));

        async Task<ServiceBusReceivedMessage> Through(ServiceBusMessage message)
        {
            await sender.SendMessageAsync(message);
            return (await Scene.Take(receiver, 1)).Single();
        }

        await Properties(scene, Through);
        await Kinds(scene, Through);
        await Fields(scene, Through);
    }

    private static async Task Properties(Scene scene, Func<ServiceBusMessage, Task<ServiceBusReceivedMessage>> through)
    {
        var time = new DateTime(2024, 2, 29, 12, 30, 15, 250, DateTimeKind.Utc);
        object[] values =
        [
            (byte)2, (sbyte)-3, 'c', (short)-4, (ushort)5, -6, 7u, -8L, 9ul, 10.5f, -11.25, 12.50m, true, Guid.NewGuid(), "text", "",
            new Uri("http://shop.example/a?b=c"), time, new DateTimeOffset(time), TimeSpan.FromMinutes(5), new byte[] { 1, 2, 3 },
        ];
        var message = new ServiceBusMessage("x");
        foreach (var (value, index) in values.Select((value, index) => (value, index)))
            message.ApplicationProperties[$"{index}"] = value;
        message.ApplicationProperties["null"] = null;
        var received = await through(message);
        var unlike = values.Select((value, index) => (value, found: received.ApplicationProperties[$"{index}"]))
            .Where(pair => pair.value.GetType() != pair.found?.GetType() || !(pair.value is byte[] bytes ? bytes.SequenceEqual((byte[])pair.found) : pair.value.Equals(pair.found)))
            .Select(pair => $"{pair.value.GetType().Name} {pair.value} as {pair.found?.GetType().Name} {pair.found}");
        scene.Found("properties", unlike);
        scene.Found("null property", received.ApplicationProperties["null"] is null);
    }

    private static async Task Kinds(Scene scene, Func<ServiceBusMessage, Task<ServiceBusReceivedMessage>> through)
    {
        async Task<AmqpMessageBody> Body(AmqpMessageBody body)
        {
            var message = new ServiceBusMessage();
            message.GetRawAmqpMessage().Body = body;
            return (await through(message)).GetRawAmqpMessage().Body;
        }

        var sections = new ReadOnlyMemory<byte>[] { Encoding.UTF8.GetBytes("one"), Encoding.UTF8.GetBytes("two") };
        (await Body(new AmqpMessageBody(sections))).TryGetData(out var data);
        scene.Found("data", data.Select(each => Encoding.UTF8.GetString(each.Span)));
        (await Body(AmqpMessageBody.FromValue(new Dictionary<string, object> { ["a"] = 1L, ["b"] = "text" }))).TryGetValue(out var value);
        var map = (IDictionary<string, object>)value;
        scene.Found("value", $"{map["a"]} {map["b"]} {map.Count}");
        var rows = new List<IList<object>> { new List<object> { 1, "a" }, new List<object> { 2, "b" } };
        (await Body(AmqpMessageBody.FromSequence(rows))).TryGetSequence(out var sequence);
        scene.Found("sequence", sequence.Select(row => string.Join(" ", row)));
        scene.Found("empty", (await through(new ServiceBusMessage())).Body.ToMemory().Length);
        var large = new byte[1_000_000];
        Random.Shared.NextBytes(large);
        scene.Found("large", (await through(new ServiceBusMessage(large))).Body.ToMemory().Span.SequenceEqual(large));
        var raw = new ServiceBusMessage("x");
        raw.GetRawAmqpMessage().MessageAnnotations["x-opt-own"] = 7;
        raw.GetRawAmqpMessage().Footer["end"] = "footer";
        raw.GetRawAmqpMessage().Properties.GroupSequence = 3;
        var found = (await through(raw)).GetRawAmqpMessage();
        scene.Found("sections", $"{found.MessageAnnotations["x-opt-own"]} {found.Footer["end"]} {found.Properties.GroupSequence}");
    }

    private static async Task Fields(Scene scene, Func<ServiceBusMessage, Task<ServiceBusReceivedMessage>> through)
    {
        static string Shown(string text) => text is null ? "null" : $"'{text}'";
        var nothing = await through(new ServiceBusMessage { ReplyTo = null, To = null, CorrelationId = null });
        scene.Found("null fields", $"{Shown(nothing.ReplyTo)} {Shown(nothing.To)} {Shown(nothing.CorrelationId)} {Shown(nothing.Subject)}");
        var empty = await through(new ServiceBusMessage { ReplyTo = "", To = "", CorrelationId = "" });
        scene.Found("empty fields", $"{Shown(empty.ReplyTo)} {Shown(empty.To)} {Shown(empty.CorrelationId)}");
        var all = new ServiceBusMessage("body")
        {
            ContentType = "type", CorrelationId = "correlation", Subject = "subject", MessageId = "id", PartitionKey = "key", SessionId = "key",
            ReplyTo = "reply", ReplyToSessionId = "reply session", TimeToLive = TimeSpan.FromMinutes(1), To = "to", TransactionPartitionKey = "via",
        };
        var received = await through(all);
        var unlike = typeof(ServiceBusMessage).GetProperties()
            .Where(property => property.PropertyType == typeof(string) || property.PropertyType == typeof(TimeSpan))
            .Where(property => !Equals(property.GetValue(all), typeof(ServiceBusReceivedMessage).GetProperty(property.Name).GetValue(received)))
            .Select(property => property.Name);
        scene.Found("fields", unlike);
    }
}
