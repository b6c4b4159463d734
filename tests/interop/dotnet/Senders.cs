// Senders: signatures, batches and their sizes, schedules that are seen and cancelled, messages with and without a session.
using System.Security.Cryptography;

public static class Senders
{
    public static async Task Run(Scene scene)
    {
        await using var client = new ServiceBusClient(scene.ConnectionString, Report.Once());
        await Task.WhenAll(
            Signature(scene), Batches(scene, client), Schedules(scene, client), SessionIds(scene, client), Closing(scene, client), Again(scene, client));
    }

    // A connection string with a signature that its holder did not make.
    private static async Task Signature(Scene scene)
    {
        var queue = await scene.Queue("signed");
        var parts = ServiceBusConnectionStringProperties.Parse(scene.ConnectionString);
        var resource = Uri.EscapeDataString($"amqp://{parts.FullyQualifiedNamespace}/{queue}".ToLowerInvariant());
        var end = DateTimeOffset.UtcNow.AddHours(1).ToUnixTimeSeconds();
        var bytes = HMACSHA256.HashData(Encoding.UTF8.GetBytes(parts.SharedAccessKey), Encoding.UTF8.GetBytes($"{resource}\n{end}"));
        var signature = $"SharedAccessSignature sr={resource}&sig={Uri.EscapeDataString(Convert.ToBase64String(bytes))}&se={end}&skn={parts.SharedAccessKeyName}";
        var endpoint = scene.ConnectionString[..scene.ConnectionString.IndexOf(';')];
        await using var client = new ServiceBusClient(
            $"{endpoint};SharedAccessSignature={signature};UseDevelopmentEmulator=true", Report.Once());
        await client.CreateSender(queue).SendMessageAsync(new ServiceBusMessage("signed"));
        scene.Found("signature", await Scene.Texts(client.CreateReceiver(queue), 1));
        var other = await scene.Queue("others");
        scene.Found("signature elsewhere", await Report.Failure(() => client.CreateSender(other).SendMessageAsync(new ServiceBusMessage("x"))));
    }

    private static async Task Batches(Scene scene, ServiceBusClient client)
    {
        var queue = await scene.Queue("batches", options => options.MaxMessageSizeInKilobytes = 256);
        var sender = client.CreateSender(queue);
        using (var batch = await sender.CreateMessageBatchAsync())
        {
            var added = new[] { 0, 100_000, 100_000, 100_000 }.Select(size => batch.TryAddMessage(new ServiceBusMessage(new byte[size])));
            scene.Found("added", added.ToList());
            await sender.SendMessagesAsync(batch);
        }
        await sender.SendMessagesAsync(new List<ServiceBusMessage>());
        scene.Found("sizes", (await Scene.Take(client.CreateReceiver(queue), 3)).Select(message => message.Body.ToMemory().Length));
        scene.Found("too large", await Report.Failure(() => sender.SendMessageAsync(new ServiceBusMessage(new byte[300_000]))));
        var many = Enumerable.Range(0, 3).Select(_ => new ServiceBusMessage(new byte[100_000]));
        scene.Found("too large a list", await Report.Failure(() => sender.SendMessagesAsync(many)));
        scene.Found("batches left", await scene.Left(queue));
    }

    private static async Task Schedules(Scene scene, ServiceBusClient client)
    {
        var queue = await scene.Queue("schedules");
        var (sender, receiver) = (client.CreateSender(queue), client.CreateReceiver(queue));
        var time = DateTimeOffset.UtcNow.AddHours(10);
        var numbers = await sender.ScheduleMessagesAsync(Enumerable.Range(0, 3).Select(number => new ServiceBusMessage($"{number}")), time);
        var found = new List<string>();
        foreach (var number in numbers)
        {
            var peeked = await receiver.PeekMessageAsync(number);
            found.Add($"{peeked.Body} {peeked.State} {Math.Abs((peeked.ScheduledEnqueueTime - time).TotalSeconds) < 1}");
        }
        scene.Found("scheduled", found);
        await sender.CancelScheduledMessagesAsync(numbers);
        scene.Found("cancelled", await receiver.PeekMessageAsync(numbers[0]) is null);
        scene.Found("no message", (await sender.ScheduleMessagesAsync([], time)).Count);
    }

    private static async Task SessionIds(Scene scene, ServiceBusClient client)
    {
        var (plain, sessions) = (await scene.Queue("plain"), await scene.Queue("sessions", options => options.RequiresSession = true));
        await client.CreateSender(plain).SendMessageAsync(new ServiceBusMessage("x") { SessionId = "s" });
        scene.Found("a session's at a queue", (await Scene.Take(client.CreateReceiver(plain), 1)).Single().SessionId);
        var sender = client.CreateSender(sessions);
        scene.Found("no session's", await Report.Failure(() => sender.SendMessageAsync(new ServiceBusMessage("x"))));
        scene.Found("after the refusal", await Report.Failure(() => sender.SendMessageAsync(new ServiceBusMessage("x") { SessionId = "s" })));
    }

    private static async Task Closing(Scene scene, ServiceBusClient client)
    {
        var queue = await scene.Queue("closing");
        var (sender, receiver) = (client.CreateSender(queue), client.CreateReceiver(queue));
        var number = await sender.ScheduleMessageAsync(new ServiceBusMessage("x"), DateTimeOffset.UtcNow.AddHours(1));
        await sender.DisposeAsync();
        scene.Found("closed", await Report.Failure(() => sender.SendMessageAsync(new ServiceBusMessage("x"))));
        scene.Found("others go on", $"{(await receiver.PeekMessageAsync(number)).Body}");
    }

    // What was received is sent as a new message: it has nothing of what the queue gave it.
    private static async Task Again(Scene scene, ServiceBusClient client)
    {
        var queue = await scene.Queue("again");
        var (sender, receiver) = (client.CreateSender(queue), client.CreateReceiver(queue));
        await sender.SendMessageAsync(new ServiceBusMessage("x") { MessageId = "id", ApplicationProperties = { ["key"] = 1 } });
        var first = await receiver.ReceiveMessageAsync();
        await receiver.AbandonMessageAsync(first);
        await receiver.DeadLetterMessageAsync(await receiver.ReceiveMessageAsync(), "reason");
        var dead = (await Scene.Take(client.CreateReceiver(queue, Scene.DeadLetters()), 1)).Single();
        await sender.SendMessageAsync(new ServiceBusMessage(dead));
        var second = await receiver.ReceiveMessageAsync();
        scene.Found("again", $"{second.Body} {second.MessageId} {second.ApplicationProperties.Count} {second.DeliveryCount} {second.DeadLetterReason}{second.DeadLetterSource}");
        scene.Found("later number", second.SequenceNumber > first.SequenceNumber);
    }
}
