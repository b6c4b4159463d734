// Receivers: peeking, cancelled receives, thousands of unsettled messages, deferral, dead letters, settling.
public static class Receivers
{
    public static async Task Run(Scene scene)
    {
        await using var client = new ServiceBusClient(scene.ConnectionString);
        await Task.WhenAll(
            Peeking(scene, client), Cancelling(scene, client), Many(scene, client), Deferring(scene, client),
            DeadLettering(scene, client), Abandoning(scene, client));
    }

    private static Task Send(ServiceBusClient client, string queue, int count) =>
        client.CreateSender(queue).SendMessagesAsync(Enumerable.Range(0, count).Select(number => new ServiceBusMessage($"{number}")));

    private static string Joined(IEnumerable<ServiceBusReceivedMessage> messages) => string.Join(" ", messages.Select(message => message.Body));

    private static async Task<List<ServiceBusReceivedMessage>> Receive(ServiceBusReceiver receiver, int count)
    {
        var found = new List<ServiceBusReceivedMessage>();
        while (found.Count < count && await receiver.ReceiveMessagesAsync(count - found.Count, Scene.Patience) is { Count: > 0 } more)
            found.AddRange(more);
        return found;
    }

    private static async Task Peeking(Scene scene, ServiceBusClient client)
    {
        var queue = await scene.Queue("peek");
        await Send(client, queue, 5);
        var receiver = client.CreateReceiver(queue, new ServiceBusReceiverOptions { PrefetchCount = 5 });
        var first = await receiver.PeekMessageAsync();
        var third = await receiver.PeekMessageAsync(first.SequenceNumber + 2);
        // Without a number a receiver goes on behind what it has peeked last.
        scene.Found("peeked", $"{first.Body} {third.Body} {Joined(await receiver.PeekMessagesAsync(10))}");
        scene.Found("peeked is settled", await Report.Failure(() => receiver.CompleteMessageAsync(first)));
        var all = await Receive(receiver, 5);
        var locked = await receiver.PeekMessagesAsync(10, 1);
        scene.Found("locked are peeked", Joined(locked));
        scene.Found("peeked locked until", first.LockedUntil == default && Math.Abs((locked[0].LockedUntil - all[0].LockedUntil).TotalSeconds) < 1);
        await Task.WhenAll(all.Select(message => receiver.CompleteMessageAsync(message)));
        scene.Found("nothing to peek", await receiver.PeekMessageAsync(1) is null);
        scene.Found("nothing fetched", (await receiver.ReceiveMessagesAsync(10, TimeSpan.Zero)).Count);
    }

    private static async Task Cancelling(Scene scene, ServiceBusClient client)
    {
        foreach (var prefetch in new[] { 0, 10 })
        {
            var queue = await scene.Queue($"cancel{prefetch}");
            var receiver = client.CreateReceiver(queue, new ServiceBusReceiverOptions
            {
                ReceiveMode = ServiceBusReceiveMode.ReceiveAndDelete, PrefetchCount = prefetch,
            });
            using (var soon = new CancellationTokenSource(TimeSpan.FromSeconds(1)))
                scene.Found($"cancelled {prefetch}", await Report.Failure(() => receiver.ReceiveMessageAsync(Scene.Patience, soon.Token)));
            await Send(client, queue, 10);
            // The credit of a cancelled receive is still at the link: what arrives for it is received by the next call.
            var texts = new List<string>();
            while (texts.Count < 10 && await receiver.ReceiveMessageAsync(Scene.Patience) is { } message)
                texts.Add(message.Body.ToString());
            scene.Found($"all {prefetch}", string.Join(" ", texts));
            scene.Found($"left {prefetch}", await scene.Left(queue));
        }
        var locked = await scene.Queue("cancel");
        var waiting = client.CreateReceiver(locked);
        using var cancel = new CancellationTokenSource(TimeSpan.FromSeconds(1));
        await Report.Failure(() => waiting.ReceiveMessageAsync(Scene.Patience, cancel.Token));
        await Send(client, locked, 1);
        var next = await waiting.ReceiveMessageAsync(Scene.Patience);
        scene.Found("after a cancelled receive", $"{next.Body} {next.DeliveryCount}");
        // An iterator receives until it is cancelled.
        using var end = new CancellationTokenSource();
        await Send(client, locked, 3);
        var seen = new List<string>();
        scene.Found("iterator ends", await Report.Failure(async () =>
        {
            await foreach (var message in waiting.ReceiveMessagesAsync(end.Token))
            {
                seen.Add(message.Body.ToString());
                await waiting.CompleteMessageAsync(message, CancellationToken.None);
                if (seen.Count == 3)
                    end.Cancel();
            }
        }));
        scene.Found("iterator", string.Join(" ", seen));
    }

    private static async Task Many(Scene scene, ServiceBusClient client)
    {
        const int Count = 6_000;
        var queue = await scene.Queue("many", options => options.LockDuration = TimeSpan.FromMinutes(5));
        for (var number = 0; number < 4; number++)
            await Send(client, queue, Count / 4);
        var receiver = client.CreateReceiver(queue);
        var messages = await Receive(receiver, Count);
        scene.Found("unsettled", messages.Select(message => message.SequenceNumber).Distinct().Count());
        await Task.WhenAll(messages.Take(1_000).Select(message => receiver.CompleteMessageAsync(message)));
        scene.Found("completed at once", await scene.Left(queue));
    }

    private static async Task Deferring(Scene scene, ServiceBusClient client)
    {
        var queue = await scene.Queue("defer");
        await Send(client, queue, 10);
        var receiver = client.CreateReceiver(queue);
        var messages = await Receive(receiver, 10);
        await Task.WhenAll(messages.Select(message => receiver.DeferMessageAsync(message)));
        var peeked = await receiver.PeekMessageAsync(1);
        scene.Found("peeked deferred", $"{peeked.Body} {peeked.State}");
        var numbers = messages.Select(message => message.SequenceNumber).ToList();
        scene.Found("one is missing", await Report.Failure(() => receiver.ReceiveDeferredMessagesAsync([.. numbers, 1_000_000])));
        scene.Found("no number", (await receiver.ReceiveDeferredMessagesAsync([])).Count);
        var deferred = await receiver.ReceiveDeferredMessagesAsync(numbers);
        scene.Found("deferred", $"{Joined(deferred)} {string.Join(" ", deferred.Select(message => message.State).Distinct())}");
        await receiver.DeferMessageAsync(deferred[0]);
        scene.Found("deferred again", $"{(await receiver.ReceiveDeferredMessageAsync(numbers[0])).Body}");
    }

    private static async Task DeadLettering(Scene scene, ServiceBusClient client)
    {
        var queue = await scene.Queue("dead");
        await Send(client, queue, 3);
        var receiver = client.CreateReceiver(queue, new ServiceBusReceiverOptions { PrefetchCount = 10 });
        var messages = await Receive(receiver, 3);
        var changed = new Dictionary<string, object> { ["DeadLetterReason"] = 7, ["DeadLetterErrorDescription"] = 8, ["more"] = "x" };
        await receiver.DeadLetterMessageAsync(messages[0]);
        await receiver.DeadLetterMessageAsync(messages[1], "reason", "description");
        await receiver.DeadLetterMessageAsync(messages[2], changed);
        var dead = await Scene.Take(client.CreateReceiver(queue, Scene.DeadLetters()), 3);
        scene.Found("dead", dead.Select(message => $"{message.Body} {message.DeadLetterReason} {message.DeadLetterErrorDescription}").Order());
        // What is no text is a property, and no reason.
        var odd = dead.Single(message => message.ApplicationProperties.ContainsKey("more")).ApplicationProperties;
        scene.Found("not a text", $"{odd["DeadLetterReason"]} {odd["DeadLetterErrorDescription"]} {odd["more"]}");
    }

    private static async Task Abandoning(Scene scene, ServiceBusClient client)
    {
        var queue = await scene.Queue("abandon");
        await Send(client, queue, 10);
        var receiver = client.CreateReceiver(queue);
        var messages = await Receive(receiver, 10);
        foreach (var message in messages)
            await receiver.AbandonMessageAsync(message);
        scene.Found("abandoned", Joined(await receiver.PeekMessagesAsync(10, 1)));
        messages = await Receive(receiver, 10);
        scene.Found("again", $"{Joined(messages)} {string.Join(" ", messages.Select(message => message.DeliveryCount).Distinct())}");
        // By another receiver, on another connection.
        await using var second = new ServiceBusClient(scene.ConnectionString);
        await using var other = second.CreateReceiver(queue);
        scene.Found("settled by another", await Report.Failure(() => other.CompleteMessageAsync(messages[0])));
        scene.Found("and not twice", await Report.Failure(() => other.CompleteMessageAsync(messages[0])));
        // And on the same one: the receiver itself is late then.
        await using var neighbour = client.CreateReceiver(queue);
        await neighbour.CompleteMessageAsync(messages[1]);
        scene.Found("settled by a neighbour", await Report.Failure(() => receiver.CompleteMessageAsync(messages[1])));
        scene.Found("abandoned left", await scene.Left(queue));
    }
}
