// Processors of sessions: events of their beginning and end, sessions by name, several calls, lost locks, queues without sessions.
public static class SessionProcessors
{
    public static async Task Run(Scene scene)
    {
        await using var client = new ServiceBusClient(scene.ConnectionString);
        await Task.WhenAll(Events(scene, client), Named(scene, client), Calls(scene, client), Lost(scene, client), Plain(scene, client), Throwing(scene, client));
    }

    private static Task<string> Queue(Scene scene, string name, TimeSpan? duration = null) => scene.Queue(name, options =>
    {
        (options.RequiresSession, options.LockDuration) = (true, duration ?? options.LockDuration);
    });

    private static Task Send(ServiceBusClient client, string queue, int count, params string[] sessions) =>
        client.CreateSender(queue).SendMessagesAsync(sessions.SelectMany(session => Enumerable.Range(0, count).Select(
            number => new ServiceBusMessage($"{number}") { SessionId = session })));

    private static ServiceBusSessionProcessor Started(
        ServiceBusSessionProcessor processor, Func<ProcessSessionMessageEventArgs, Task> handle, ConcurrentBag<string> errors = null)
    {
        processor.ProcessMessageAsync += handle;
        processor.ProcessErrorAsync += call =>
        {
            errors?.Add($"{call.ErrorSource} {(call.Exception as ServiceBusException)?.Reason.ToString() ?? call.Exception.GetType().Name}");
            return Task.CompletedTask;
        };
        return processor;
    }

    private static async Task Events(Scene scene, ServiceBusClient client)
    {
        var queue = await Queue(scene, "events");
        var names = Enumerable.Range(0, 5).Select(number => $"s{number}").ToArray();
        await Send(client, queue, 2, names);
        var (begun, ended, handled) = (0, new ConcurrentBag<string>(), 0);
        await using var processor = Started(client.CreateSessionProcessor(queue, new ServiceBusSessionProcessorOptions
        {
            MaxConcurrentSessions = 5, SessionIdleTimeout = TimeSpan.FromSeconds(1),
        }), _ => Task.FromResult(Interlocked.Increment(ref handled)));
        processor.SessionInitializingAsync += async call =>
        {
            Interlocked.Increment(ref begun);
            await call.SetSessionStateAsync(BinaryData.FromString(call.SessionId));
        };
        processor.SessionClosingAsync += async call => ended.Add($"{await call.GetSessionStateAsync()}");
        await processor.StartProcessingAsync();
        await Scene.Until(() => handled >= 10 && ended.Distinct().Count() == 5, "each session has ended");
        await processor.StopProcessingAsync();
        scene.Found("events", $"{begun >= 5} {handled} {string.Join(" ", ended.Distinct().Order())}");
    }

    private static async Task Named(Scene scene, ServiceBusClient client)
    {
        var queue = await Queue(scene, "named");
        await Send(client, queue, 3, "a", "b", "c");
        var seen = new ConcurrentBag<string>();
        await using var processor = Started(client.CreateSessionProcessor(queue, new ServiceBusSessionProcessorOptions
        {
            SessionIds = { "b", "c" }, MaxConcurrentSessions = 2, AutoCompleteMessages = false,
        }), async call =>
        {
            await call.CompleteMessageAsync(call.Message);
            seen.Add(call.SessionId);
        });
        await processor.StartProcessingAsync();
        await Scene.Until(() => seen.Count >= 6, "both sessions are handled");
        await processor.StopProcessingAsync();
        scene.Found("named", $"{string.Join("", seen.Order())} {await scene.Left(queue)}");
    }

    private static async Task Calls(Scene scene, ServiceBusClient client)
    {
        var queue = await Queue(scene, "calls");
        await Send(client, queue, 20, "a", "b");
        var errors = new ConcurrentBag<string>();
        var (running, most, handled, released) = (0, 0, 0, 0);
        await using var processor = Started(client.CreateSessionProcessor(queue, new ServiceBusSessionProcessorOptions
        {
            MaxConcurrentSessions = 1, MaxConcurrentCallsPerSession = 4, PrefetchCount = 10,
        }), async call =>
        {
            var now = Interlocked.Increment(ref running);
            lock (errors)
                most = Math.Max(most, now);
            await Task.Delay(10);
            Interlocked.Decrement(ref running);
            // Each session has 20 messages: at its end it is released, so that the other one is accepted.
            if (Interlocked.Increment(ref handled) % 20 == 0)
            {
                Interlocked.Increment(ref released);
                call.ReleaseSession();
            }
        }, errors);
        await processor.StartProcessingAsync();
        await Scene.Until(() => handled >= 40, "both sessions are handled");
        await processor.StopProcessingAsync();
        scene.Found("calls", $"{handled} {most is > 1 and <= 4} {released} {string.Join(" ", errors)} {await scene.Left(queue)}");
    }

    private static async Task Lost(Scene scene, ServiceBusClient client)
    {
        var queue = await Queue(scene, "lost", Scene.ShortLock);
        await Send(client, queue, 1, "s");
        var found = new TaskCompletionSource<string>(TaskCreationOptions.RunContinuationsAsynchronously);
        await using var processor = Started(client.CreateSessionProcessor(queue, new ServiceBusSessionProcessorOptions
        {
            AutoCompleteMessages = false, MaxAutoLockRenewalDuration = TimeSpan.Zero, MaxConcurrentSessions = 1,
        }), async call =>
        {
            if (call.Message.DeliveryCount > 1)
            {
                await call.CompleteMessageAsync(call.Message);
                return;
            }
            var noticed = new TaskCompletionSource(TaskCreationOptions.RunContinuationsAsynchronously);
            call.SessionLockLostAsync += _ =>
            {
                noticed.TrySetResult();
                return Task.CompletedTask;
            };
            await noticed.Task;
            await Task.Delay(TimeSpan.FromSeconds(1));
            found.TrySetResult(await Report.Failure(() => call.CompleteMessageAsync(call.Message)));
        });
        await processor.StartProcessingAsync();
        scene.Found("lost", await found.Task);
        await processor.StopProcessingAsync();
    }

    private static async Task Plain(Scene scene, ServiceBusClient client)
    {
        var queue = await scene.Queue("plain");
        var errors = new ConcurrentBag<string>();
        await using var processor = Started(client.CreateSessionProcessor(queue), _ => Task.CompletedTask, errors);
        await processor.StartProcessingAsync();
        await Scene.Until(() => !errors.IsEmpty, "the error arrives");
        await processor.StopProcessingAsync();
        scene.Found("without sessions", errors.Distinct());
    }

    private static async Task Throwing(Scene scene, ServiceBusClient client)
    {
        var queue = await Queue(scene, "throwing");
        await Send(client, queue, 1, "s");
        var errors = new ConcurrentBag<string>();
        var counts = new ConcurrentBag<int>();
        await using var processor = Started(client.CreateSessionProcessor(queue), call =>
        {
            counts.Add(call.Message.DeliveryCount);
            return call.Message.DeliveryCount < 3 ? throw new InvalidDataException("the handler failed") : Task.CompletedTask;
        }, errors);
        await processor.StartProcessingAsync();
        await Scene.Until(() => counts.Count >= 3, "the third delivery succeeds");
        await processor.StopProcessingAsync();
        scene.Found("throwing", $"{string.Join(" ", counts.Order())} {string.Join(" ", errors)} {await scene.Left(queue)}");
    }
}
