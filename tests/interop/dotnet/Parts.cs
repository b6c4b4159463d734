// Programs that run at once in one process, since to compile and start one costs more than most of them: CONNECTION_STRING
// ADMINISTRATION_STRING PREFIX. Each is a file of its own; the README of this folder says what they stand for.
public static class Parts
{
    public static async Task Run(string[] arguments)
    {
        (string Name, Func<Scene, Task> Run)[] parts =
        [
            ("entities", FrameworkEntities.Run),
            ("masstransit", MassTransitLinks.Run),
            ("nservicebus", NServiceBusLinks.Run),
            ("rebus", RebusLinks.Run),
            ("wolverine", WolverineLinks.Run),
            ("functions", FunctionsLinks.Run),
            ("receivers", Receivers.Run),
            ("session receivers", SessionReceivers.Run),
            ("senders", Senders.Run),
            ("bodies", Bodies.Run),
            ("processors", Processors.Run),
            ("session processors", SessionProcessors.Run),
            ("transactions", SdkTransactions.Run),
            ("rules", RuleManagers.Run),
            ("administration", Administrations.Run),
        ];
        // As many calls begin at once as a pool of threads takes a while to grow to.
        ThreadPool.SetMinThreads(64, 64);
        var administration = new ServiceBusAdministrationClient(arguments[1]);
        await Task.WhenAll(parts.Select(part => part.Run(new Scene(arguments[0], administration, $"{arguments[2]}/{part.Name}"))));
    }
}
