// Transactions: of one queue, of sessions, of deferred messages, over entities, by receivers, processors and senders first.
public static class SdkTransactions
{
    private static readonly ServiceBusClientOptions Entities = new() { EnableCrossEntityTransactions = true };

    public static async Task Run(Scene scene)
    {
        await using var client = new ServiceBusClient(scene.ConnectionString, Report.Once());
        await Task.WhenAll(
            Queue(scene, client, sessions: false), Queue(scene, client, sessions: true), Deferred(scene, client), Subscription(scene, client),
            Schedules(scene, client), Clients(scene, client), ReceivesFirst(scene), SendsFirst(scene), Processor(scene), SessionProcessor(scene));
    }

    private static async Task Transacted(bool commits, params Func<Task>[] calls)
    {
        using var scope = new TransactionScope(TransactionScopeAsyncFlowOption.Enabled);
        foreach (var call in calls)
            await call();
        if (commits)
            scope.Complete();
    }

    private static ServiceBusMessage Message(string text, bool sessions) => new(text) { SessionId = sessions ? "s" : null };

    private static async Task Queue(Scene scene, ServiceBusClient client, bool sessions)
    {
        var name = sessions ? "session" : "queue";
        var queue = await scene.Queue(name, options => options.RequiresSession = sessions);
        var sender = client.CreateSender(queue);
        await Transacted(false, () => sender.SendMessageAsync(Message("never", sessions)));
        await Transacted(true, () => sender.SendMessageAsync(Message("one", sessions)), () => sender.SendMessageAsync(Message("two", sessions)));
        var receiver = sessions ? await client.AcceptNextSessionAsync(queue) : client.CreateReceiver(queue);
        var first = await receiver.ReceiveMessageAsync(Scene.Patience);
        await Transacted(false, () => receiver.CompleteMessageAsync(first), () => sender.SendMessageAsync(Message("never", sessions)));
        if (!sessions)
        {
            // The message is the receiver's own after a rollback.
            scene.Found("after a rollback", await Report.Failure(() => Transacted(
                true, () => receiver.CompleteMessageAsync(first), () => sender.SendMessageAsync(Message("three", sessions)))));
            scene.Found("completed twice", await Report.Failure(() => receiver.CompleteMessageAsync(first)));
        }
        await receiver.CloseAsync();
        receiver = sessions ? await client.AcceptNextSessionAsync(queue) : client.CreateReceiver(queue);
        scene.Found($"{name} left", string.Join(" ", await Scene.Texts(receiver, 2)));
    }

    private static async Task Deferred(Scene scene, ServiceBusClient client)
    {
        var queue = await scene.Queue("deferred");
        await client.CreateSender(queue).SendMessageAsync(new ServiceBusMessage("x"));
        var receiver = client.CreateReceiver(queue);
        var message = await receiver.ReceiveMessageAsync(Scene.Patience);
        await receiver.DeferMessageAsync(message);
        var deferred = await receiver.ReceiveDeferredMessageAsync(message.SequenceNumber);
        await Transacted(false, () => receiver.CompleteMessageAsync(deferred));
        scene.Found("deferred after a rollback", await Report.Failure(() => Transacted(true, () => receiver.CompleteMessageAsync(deferred))));
        scene.Found("deferred is settled", await Report.Failure(() => receiver.CompleteMessageAsync(deferred)));
    }

    private static async Task Subscription(Scene scene, ServiceBusClient client)
    {
        var topic = await scene.Topic("topic");
        await scene.Administration.CreateSubscriptionAsync(topic, "sub");
        var (sender, receiver) = (client.CreateSender(topic), client.CreateReceiver(topic, "sub"));
        await sender.SendMessageAsync(new ServiceBusMessage("one"));
        var message = await receiver.ReceiveMessageAsync(Scene.Patience);
        await Transacted(true, () => sender.SendMessageAsync(new ServiceBusMessage("two")), () => receiver.CompleteMessageAsync(message));
        scene.Found("subscription", await Scene.Texts(receiver, 1));
    }

    private static async Task Schedules(Scene scene, ServiceBusClient client)
    {
        var queue = await scene.Queue("schedules", options => options.RequiresSession = true);
        var (sender, later) = (client.CreateSender(queue), DateTimeOffset.UtcNow.AddHours(1));
        Func<Task> Schedule(string text, DateTimeOffset time) =>
            () => sender.ScheduleMessageAsync(new ServiceBusMessage(text) { SessionId = text }, time);
        await Transacted(false, () => sender.SendMessageAsync(Message("never", true)), Schedule("never", later));
        await Transacted(true, () => sender.SendMessageAsync(Message("sent", true)), Schedule("soon", DateTimeOffset.UtcNow));
        await using var soon = await client.AcceptSessionAsync(queue, "soon");
        scene.Found("scheduled", await Scene.Texts(soon, 1));
        var number = await sender.ScheduleMessageAsync(Message("later", true), later);
        await Transacted(false, () => sender.CancelScheduledMessageAsync(number));
        scene.Found("cancelled and rolled back", await scene.Left(queue));
        await Transacted(true, () => sender.CancelScheduledMessageAsync(number));
        scene.Found("cancelled", await scene.Left(queue));
    }

    // A transaction belongs to the connection of its client.
    private static async Task Clients(Scene scene, ServiceBusClient client)
    {
        var queue = await scene.Queue("clients");
        await using var second = new ServiceBusClient(scene.ConnectionString, Report.Once());
        var (sender, receiver) = (client.CreateSender(queue), second.CreateReceiver(queue));
        await sender.SendMessageAsync(new ServiceBusMessage("one"));
        var message = await receiver.ReceiveMessageAsync(Scene.Patience);
        var failure = "none";
        await Report.Failure(() => Transacted(true, () => receiver.CompleteMessageAsync(message), async () =>
            failure = await Report.Failure(() => sender.SendMessageAsync(new ServiceBusMessage("two")))));
        scene.Found("another client", failure != "none");
    }

    private static async Task<(string A, string B, string C)> Three(Scene scene, string name, bool sessions = false)
    {
        void Values(CreateQueueOptions options) => options.RequiresSession = sessions;
        return (await scene.Queue($"{name}/a", Values), await scene.Queue($"{name}/b", Values), await scene.Queue($"{name}/c", Values));
    }

    private static async Task ReceivesFirst(Scene scene)
    {
        var (a, b, c) = await Three(scene, "receives");
        await using var client = new ServiceBusClient(scene.ConnectionString, Entities);
        await using var plain = new ServiceBusClient(scene.ConnectionString);
        await plain.CreateSender(a).SendMessageAsync(new ServiceBusMessage("x"));
        var (receiver, senderB, senderC) = (client.CreateReceiver(a), client.CreateSender(b), client.CreateSender(c));
        Func<Task> Send(ServiceBusSender sender) => () => sender.SendMessageAsync(new ServiceBusMessage("y"));
        var message = await receiver.ReceiveMessageAsync(Scene.Patience);
        await Transacted(false, () => receiver.CompleteMessageAsync(message), Send(senderB), Send(senderC));
        await receiver.AbandonMessageAsync(message);
        message = await receiver.ReceiveMessageAsync(Scene.Patience);
        var nothing = $"{await scene.Left(b)}, {await scene.Left(c)}";
        await Transacted(true, () => receiver.CompleteMessageAsync(message), Send(senderB), Send(senderC));
        scene.Found("receives first", $"{message.DeliveryCount}: {nothing}; {await scene.Left(a)}, {await scene.Left(b)}, {await scene.Left(c)}");
    }

    private static async Task SendsFirst(Scene scene)
    {
        var (a, b, c) = await Three(scene, "sends");
        await using var client = new ServiceBusClient(scene.ConnectionString, Entities);
        var (senderA, senderB, senderC) = (client.CreateSender(a), client.CreateSender(b), client.CreateSender(c));
        Func<Task> Send(ServiceBusSender sender) => () => sender.SendMessageAsync(new ServiceBusMessage("y"));
        await Transacted(false, Send(senderB), Send(senderC));
        await Transacted(true, Send(senderB), Send(senderC));
        // Beyond Service Bus, where only what was first receives.
        var receiver = client.CreateReceiver(b);
        var message = await receiver.ReceiveMessageAsync(Scene.Patience);
        await Transacted(true, () => receiver.CompleteMessageAsync(message), Send(senderC), Send(senderA));
        scene.Found("sends first", $"{await scene.Left(a)}, {await scene.Left(b)}, {await scene.Left(c)}");
    }

    private static async Task Processor(Scene scene)
    {
        var (a, b, c) = await Three(scene, "processor");
        await using var client = new ServiceBusClient(scene.ConnectionString, Entities);
        await using var plain = new ServiceBusClient(scene.ConnectionString);
        await plain.CreateSender(a).SendMessageAsync(new ServiceBusMessage("x"));
        var (senderB, senderC) = (client.CreateSender(b), client.CreateSender(c));
        var counts = new ConcurrentQueue<int>();
        await using var processor = client.CreateProcessor(a);
        processor.ProcessErrorAsync += _ => Task.CompletedTask;
        processor.ProcessMessageAsync += async call =>
        {
            var first = call.Message.DeliveryCount == 1;
            await Transacted(
                !first, () => call.CompleteMessageAsync(call.Message), () => senderB.SendMessageAsync(new ServiceBusMessage("y")),
                () => senderC.SendMessageAsync(new ServiceBusMessage("y")));
            if (first)
                await call.AbandonMessageAsync(call.Message);
            counts.Enqueue(call.Message.DeliveryCount);
        };
        await processor.StartProcessingAsync();
        await Scene.Until(() => counts.Count >= 2, "the second delivery commits");
        await processor.StopProcessingAsync();
        scene.Found("processor", $"{string.Join(" ", counts)}: {await scene.Left(a)}, {await scene.Left(b)}, {await scene.Left(c)}");
    }

    private static async Task SessionProcessor(Scene scene)
    {
        var (a, b, c) = await Three(scene, "sessions", sessions: true);
        await using var client = new ServiceBusClient(scene.ConnectionString, Entities);
        await using var plain = new ServiceBusClient(scene.ConnectionString);
        await plain.CreateSender(a).SendMessageAsync(Message("x", true));
        var (senderB, senderC) = (client.CreateSender(b), client.CreateSender(c));
        var done = 0;
        await using var processor = client.CreateSessionProcessor(a);
        processor.ProcessErrorAsync += _ => Task.CompletedTask;
        processor.ProcessMessageAsync += async call =>
        {
            await Transacted(
                true, () => call.CompleteMessageAsync(call.Message), () => senderB.SendMessageAsync(Message("y", true)),
                () => senderC.SendMessageAsync(Message("y", true)));
            Interlocked.Increment(ref done);
        };
        await processor.StartProcessingAsync();
        await Scene.Until(() => done >= 1, "the message of the session is handled");
        await processor.StopProcessingAsync();
        scene.Found("session processor", $"{done}: {await scene.Left(a)}, {await scene.Left(b)}, {await scene.Left(c)}");
        await using var session = await plain.AcceptNextSessionAsync(b);
        scene.Found("session sent", $"{session.SessionId} {string.Join(" ", await Scene.Texts(session, 1))}");
    }
}
