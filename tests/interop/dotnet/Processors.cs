// Processors: several calls at once, handlers that settle or throw, locks that are renewed or lost, stopping, concurrency that is changed.
public static class Processors
{
    public static async Task Run(Scene scene)
    {
        await using var client = new ServiceBusClient(scene.ConnectionString);
        await Task.WhenAll(
            Calls(scene, client), Throwing(scene, client), Stopping(scene, client), Missing(scene, client), Renewed(scene, client),
            Lost(scene, client), Concurrency(scene, client), Closing(scene), Subqueue(scene, client));
    }

    private static Task Send(ServiceBusClient client, string queue, int count) =>
        client.CreateSender(queue).SendMessagesAsync(Enumerable.Range(0, count).Select(number => new ServiceBusMessage($"{number}")));

    private static ServiceBusProcessor Started(ServiceBusProcessor processor, Func<ProcessMessageEventArgs, Task> handle, ConcurrentBag<string> errors = null)
    {
        processor.ProcessMessageAsync += handle;
        processor.ProcessErrorAsync += call =>
        {
            errors?.Add($"{call.ErrorSource} {(call.Exception as ServiceBusException)?.Reason.ToString() ?? call.Exception.GetType().Name}");
            return Task.CompletedTask;
        };
        return processor;
    }

    private static async Task Calls(Scene scene, ServiceBusClient client)
    {
        foreach (var (calls, complete) in new[] { (1, false), (5, true), (20, true) })
        {
            var queue = await scene.Queue($"calls{calls}");
            await Send(client, queue, calls * 2);
            var (running, most, handled) = (0, 0, 0);
            var errors = new ConcurrentBag<string>();
            await using var processor = Started(client.CreateProcessor(queue, new ServiceBusProcessorOptions
            {
                MaxConcurrentCalls = calls, AutoCompleteMessages = complete, PrefetchCount = 20,
            }), async call =>
            {
                var now = Interlocked.Increment(ref running);
                lock (errors)
                    most = Math.Max(most, now);
                await Task.Delay(20);
                if (!complete)
                    await call.CompleteMessageAsync(call.Message);
                Interlocked.Decrement(ref running);
                Interlocked.Increment(ref handled);
            }, errors);
            await processor.StartProcessingAsync();
            await Scene.Until(() => handled == calls * 2, $"{calls} calls have handled each message");
            await processor.StopProcessingAsync();
            scene.Found($"{calls} calls", $"{handled} {most <= calls} {string.Join(" ", errors)} {await scene.Left(queue)}");
        }
    }

    // A handler that has settled its message, and then throws or returns.
    private static async Task Throwing(Scene scene, ServiceBusClient client)
    {
        foreach (var throws in new[] { false, true })
            foreach (var end in new[] { "nothing", "complete", "abandon", "defer", "dead-letter" })
            {
                var queue = await scene.Queue($"{end} {throws}");
                await Send(client, queue, 1);
                var counts = new ConcurrentBag<int>();
                var errors = new ConcurrentBag<string>();
                await using var processor = Started(client.CreateProcessor(queue), async call =>
                {
                    if (call.Message.DeliveryCount > 1)
                        counts.Add(call.Message.DeliveryCount);
                    else
                    {
                        await (end switch
                        {
                            "complete" => call.CompleteMessageAsync(call.Message),
                            "abandon" => call.AbandonMessageAsync(call.Message),
                            "defer" => call.DeferMessageAsync(call.Message),
                            "dead-letter" => call.DeadLetterMessageAsync(call.Message, "reason"),
                            _ => Task.CompletedTask,
                        });
                        counts.Add(1);
                        if (throws)
                            throw new InvalidDataException("the handler failed");
                    }
                }, errors);
                await processor.StartProcessingAsync();
                var again = end == "abandon" || (end == "nothing" && throws);
                await Scene.Until(() => counts.Count == (again ? 2 : 1) && (!throws || !errors.IsEmpty), $"{queue} is handled");
                await processor.StopProcessingAsync();
                scene.Found($"{end}{(throws ? " and throw" : "")}", $"{string.Join(" ", errors)} {await scene.Left(queue)}".Trim());
            }
    }

    private static async Task Stopping(Scene scene, ServiceBusClient client)
    {
        var queue = await scene.Queue("stopping");
        await Send(client, queue, 40);
        var handled = 0;
        var stopped = new TaskCompletionSource<Task>(TaskCreationOptions.RunContinuationsAsynchronously);
        ServiceBusProcessor processor = null;
        processor = Started(client.CreateProcessor(queue, new ServiceBusProcessorOptions { MaxConcurrentCalls = 5, PrefetchCount = 10 }), async call =>
        {
            // It is stopped by a handler, and the handlers that run go on to their end.
            if (Interlocked.Increment(ref handled) == 10)
                stopped.SetResult(processor.StopProcessingAsync());
            await Task.Delay(20);
        });
        await processor.StartProcessingAsync();
        await await stopped.Task;
        var texts = handled;
        await processor.DisposeAsync();
        // What was fetched ahead is given back uncounted.
        var rest = await Scene.Take(client.CreateReceiver(queue), 40 - texts);
        scene.Found("stopped", $"{texts + rest.Count} {rest.Count > 0} {rest.Max(message => message.DeliveryCount)} {await scene.Left(queue)}");
    }

    private static async Task Missing(Scene scene, ServiceBusClient client)
    {
        var errors = new ConcurrentBag<string>();
        await using var processor = Started(client.CreateProcessor($"{scene.Name}/missing"), _ => Task.CompletedTask, errors);
        await processor.StartProcessingAsync();
        await Scene.Until(() => !errors.IsEmpty, "the error arrives");
        scene.Found("missing", errors.First());
        scene.Found("started twice", await Report.Failure(() => processor.StartProcessingAsync()));
        await Task.WhenAll(processor.StopProcessingAsync(), processor.StopProcessingAsync());
    }

    // Locks are renewed as long as the handlers run, more than one of them.
    private static async Task Renewed(Scene scene, ServiceBusClient client)
    {
        var queue = await scene.Queue("renewed", options => options.LockDuration = Scene.ShortLock);
        await Send(client, queue, 5);
        var handled = 0;
        var errors = new ConcurrentBag<string>();
        await using (var processor = Started(client.CreateProcessor(queue, new ServiceBusProcessorOptions { MaxConcurrentCalls = 5 }), async call =>
        {
            await Task.Delay(Scene.ShortLock * 1.4);
            Interlocked.Add(ref handled, call.Message.DeliveryCount);
        }, errors))
        {
            await processor.StartProcessingAsync();
            await Scene.Until(() => handled >= 5, "each long handler has ended");
            await processor.StopProcessingAsync();
        }
        scene.Found("renewed", $"{handled} {string.Join(" ", errors)} {await scene.Left(queue)}");
    }

    // Without renewal the lock is lost, and the handler is notified.
    private static async Task Lost(Scene scene, ServiceBusClient client)
    {
        var queue = await scene.Queue("lost", options => options.LockDuration = Scene.ShortLock);
        await Send(client, queue, 1);
        var lost = new TaskCompletionSource<string>(TaskCreationOptions.RunContinuationsAsynchronously);
        await using var without = Started(client.CreateProcessor(queue, new ServiceBusProcessorOptions
        {
            AutoCompleteMessages = false, MaxAutoLockRenewalDuration = TimeSpan.Zero,
        }), async call =>
        {
            if (call.Message.DeliveryCount > 1)
            {
                await call.CompleteMessageAsync(call.Message);
                return;
            }
            var noticed = new TaskCompletionSource(TaskCreationOptions.RunContinuationsAsynchronously);
            call.MessageLockLostAsync += _ =>
            {
                noticed.TrySetResult();
                return Task.CompletedTask;
            };
            await noticed.Task;
            await Task.Delay(TimeSpan.FromSeconds(1));
            lost.SetResult(await Report.Failure(() => call.CompleteMessageAsync(call.Message)));
        });
        await without.StartProcessingAsync();
        scene.Found("lost", await lost.Task);
        await without.StopProcessingAsync();
    }

    private static async Task Concurrency(Scene scene, ServiceBusClient client)
    {
        var queue = await scene.Queue("concurrency");
        await Send(client, queue, 100);
        var (running, handled) = (0, 0);
        ServiceBusProcessor processor = null;
        processor = Started(client.CreateProcessor(queue, new ServiceBusProcessorOptions { MaxConcurrentCalls = 20 }), async call =>
        {
            Interlocked.Increment(ref running);
            await Task.Delay(5);
            Interlocked.Decrement(ref running);
            var count = Interlocked.Increment(ref handled);
            if (count is 40 or 60)
                processor.UpdateConcurrency(count == 40 ? 1 : 10);
        });
        await processor.StartProcessingAsync();
        await Scene.Until(() => handled == 100, "each message is handled");
        await processor.StopProcessingAsync();
        await processor.DisposeAsync();
        scene.Found("concurrency", $"{handled} {processor.MaxConcurrentCalls} {await scene.Left(queue)}");
    }

    private static async Task Closing(Scene scene)
    {
        var queue = await scene.Queue("closing");
        var client = new ServiceBusClient(scene.ConnectionString);
        await Send(client, queue, 10);
        var handled = 0;
        var errors = new ConcurrentBag<string>();
        await using var processor = Started(client.CreateProcessor(queue), _ => Task.FromResult(Interlocked.Increment(ref handled)), errors);
        await processor.StartProcessingAsync();
        await Scene.Until(() => handled == 10, "each message is handled");
        await client.DisposeAsync();
        await Scene.Until(() => !processor.IsProcessing, "the processor of a closed client stops");
        scene.Found("closed client", errors.Contains("Receive ObjectDisposedException"));
    }

    private static async Task Subqueue(Scene scene, ServiceBusClient client)
    {
        var queue = await scene.Queue("dead");
        await Send(client, queue, 10);
        await using var receiver = client.CreateReceiver(queue);
        for (var count = 0; count < 10; count++)
            await receiver.DeadLetterMessageAsync(await receiver.ReceiveMessageAsync(Scene.Patience));
        var handled = 0;
        await using var processor = Started(client.CreateProcessor(queue, new ServiceBusProcessorOptions { SubQueue = SubQueue.DeadLetter }),
            _ => Task.FromResult(Interlocked.Increment(ref handled)));
        await processor.StartProcessingAsync();
        await Scene.Until(() => handled == 10, "each dead letter is handled");
        await processor.StopProcessingAsync();
        scene.Found("dead letters", $"{handled} {await scene.Left(queue)}");
    }
}
