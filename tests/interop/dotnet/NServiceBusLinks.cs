// What NServiceBus' transport does on links: what a handler sends and the end of its message are one transaction over several
// entities; messages are fetched ahead; locks are renewed; failures go to an error queue, or are dead letters.
public static class NServiceBusLinks
{
    private const string Types = "NServiceBus.EnclosedMessageTypes";

    public static Task Run(Scene scene) => Task.WhenAll(Sales(scene), Long(scene));

    private static async Task Sales(Scene scene)
    {
        void Values(CreateQueueOptions options) => (options.LockDuration, options.MaxSizeInMegabytes) = (TimeSpan.FromMinutes(5), 5120);
        var (sales, billing, error) = (await scene.Queue("sales", Values), await scene.Queue("billing", Values), await scene.Queue("error", Values));
        var topic = await scene.Topic("Shop.Placed");
        await scene.Forward(topic, "billing", billing, new SqlRuleFilter($"[{Types}] LIKE '%Shop.Placed%'"));
        await using var client = new ServiceBusClient(
            scene.ConnectionString, new ServiceBusClientOptions { EnableCrossEntityTransactions = true });
        var senders = new[] { sales, billing, error, topic }.ToDictionary(name => name, client.CreateSender);
        var ended = new ConcurrentBag<string>();
        var failures = new ConcurrentBag<string>();

        async Task InTransaction(Func<Task> work)
        {
            using var scope = new TransactionScope(TransactionScopeAsyncFlowOption.Enabled);
            await work();
            scope.Complete();
        }

        async Task Handle(ProcessMessageEventArgs call)
        {
            var (message, text) = (call.Message, call.Message.Body.ToString());
            if (text == "fails" && message.DeliveryCount == 1)
            {
                // The handler throws after it has sent: nothing of this attempt is seen, and the message comes again.
                using (new TransactionScope(TransactionScopeAsyncFlowOption.Enabled))
                {
                    await senders[billing].SendMessageAsync(new ServiceBusMessage("never"));
                    await call.CompleteMessageAsync(message);
                }
                await call.AbandonMessageAsync(message);
                return;
            }
            await InTransaction(async () =>
            {
                if (text == "fails")
                {
                    var failed = new ServiceBusMessage(message.Body) { ApplicationProperties = { ["NServiceBus.FailedQ"] = sales } };
                    await senders[error].SendMessageAsync(failed);
                    await call.CompleteMessageAsync(message);
                }
                else if (text == "poison")
                {
                    var changed = new Dictionary<string, object> { ["NServiceBus.ExceptionInfo.Message"] = "can't be read" };
                    await call.DeadLetterMessageAsync(message, changed, "Deserialization", "no such type");
                }
                else
                {
                    if (text.StartsWith("order"))
                        await Sent(text);
                    await call.CompleteMessageAsync(message);
                }
            });
            ended.Add($"{text} {message.DeliveryCount}");
        }

        async Task Sent(string text)
        {
            using var batch = await senders[billing].CreateMessageBatchAsync();
            batch.TryAddMessage(new ServiceBusMessage($"{text} invoice"));
            batch.TryAddMessage(new ServiceBusMessage($"{text} receipt"));
            await senders[billing].SendMessagesAsync(batch);
            var placed = new ServiceBusMessage($"{text} placed") { ApplicationProperties = { [Types] = "Shop.Placed, Shop" } };
            await senders[topic].SendMessageAsync(placed);
            if (text == "order 0")
            {
                var later = DateTimeOffset.UtcNow.AddSeconds(1);
                await senders[sales].SendMessageAsync(new ServiceBusMessage("delayed") { ScheduledEnqueueTime = later });
            }
        }

        const int Orders = 30;
        var texts = Enumerable.Range(0, Orders).Select(number => $"order {number}").Concat(["fails", "poison"]);
        await senders[sales].SendMessagesAsync(texts.Select(text => new ServiceBusMessage(text)));
        await using var processor = client.CreateProcessor(sales, new ServiceBusProcessorOptions
        {
            PrefetchCount = 20, MaxConcurrentCalls = 2, AutoCompleteMessages = false, MaxAutoLockRenewalDuration = TimeSpan.FromMinutes(5),
            Identifier = "Processor-sales",
        });
        processor.ProcessMessageAsync += Handle;
        processor.ProcessErrorAsync += call =>
        {
            failures.Add($"{call.ErrorSource} {call.Exception.Message}");
            return Task.CompletedTask;
        };
        await processor.StartProcessingAsync();
        await Scene.Until(() => ended.Count >= Orders + 3, "each message has ended");
        await processor.StopProcessingAsync();
        scene.Found("orders", ended.Count(each => each.StartsWith("order") && each.EndsWith(" 1")));
        scene.Found("others", ended.Where(each => !each.StartsWith("order")).Order(StringComparer.Ordinal));
        scene.Found("errors", failures);

        // A client for what is outside of transactions, as this one begins one with its first entity.
        await using var reader = new ServiceBusClient(scene.ConnectionString);
        var bills = await Scene.Texts(reader.CreateReceiver(billing), 3 * Orders);
        scene.Found("bills", bills.Distinct().Count(text => text.StartsWith("order")));
        scene.Found("error", (await Scene.Take(reader.CreateReceiver(error), 1)).Select(
            message => $"{message.Body} {message.ApplicationProperties["NServiceBus.FailedQ"]} {message.DeliveryCount}").Single() == $"fails {sales} 1");
        var dead = (await Scene.Take(reader.CreateReceiver(sales, Scene.DeadLetters()), 1)).Single();
        scene.Found("dead", new[]
        {
            $"{dead.Body}", dead.DeadLetterReason, dead.DeadLetterErrorDescription, $"{dead.ApplicationProperties["NServiceBus.ExceptionInfo.Message"]}",
        });
        scene.Found("left", new[] { await scene.Left(sales), await scene.Left(billing), await scene.Left(error) });
    }

    // A handler that takes longer than the lock of its message; its client renews that.
    private static async Task Long(Scene scene)
    {
        var shipping = await scene.Queue("shipping");
        var queue = await scene.Queue("sales-node1", options => options.LockDuration = Scene.ShortLock);
        await using var client = new ServiceBusClient(
            scene.ConnectionString, new ServiceBusClientOptions { EnableCrossEntityTransactions = true });
        await using var processor = client.CreateProcessor(queue, new ServiceBusProcessorOptions
        {
            AutoCompleteMessages = false, MaxAutoLockRenewalDuration = TimeSpan.FromMinutes(5),
        });
        await using var sender = client.CreateSender(shipping);
        var failures = new ConcurrentBag<string>();
        var ended = 0;
        processor.ProcessErrorAsync += call =>
        {
            failures.Add($"{call.ErrorSource} {call.Exception.Message}");
            return Task.CompletedTask;
        };
        processor.ProcessMessageAsync += async call =>
        {
            await Task.Delay(Scene.ShortLock * 1.4);
            using (var scope = new TransactionScope(TransactionScopeAsyncFlowOption.Enabled))
            {
                await sender.SendMessageAsync(new ServiceBusMessage($"long {call.Message.DeliveryCount}"));
                await call.CompleteMessageAsync(call.Message);
                scope.Complete();
            }
            Interlocked.Increment(ref ended);
        };
        await using var reader = new ServiceBusClient(scene.ConnectionString);
        await using var first = reader.CreateSender(queue);
        await first.SendMessageAsync(new ServiceBusMessage("long"));
        await processor.StartProcessingAsync();
        await Scene.Until(() => ended >= 1, "the long handler has ended");
        await processor.StopProcessingAsync();
        scene.Found("long", await Scene.Texts(reader.CreateReceiver(shipping), 1));
        scene.Found("errors of long", failures);
        scene.Found("long left", await scene.Left(queue));
    }
}
