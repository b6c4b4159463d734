// The administration requests of four frameworks with all of their values: what comes back is what was sent, also after an update.
public static class FrameworkEntities
{
    private static readonly TimeSpan Year = TimeSpan.FromDays(366);

    // What MassTransit gives to what stays, and frameworks to queues of a process.
    private static readonly TimeSpan Kept = TimeSpan.FromDays(427), Brief = TimeSpan.FromMinutes(5);

    public static async Task Run(Scene scene)
    {
        await Task.WhenAll(MassTransit(scene), NServiceBus(scene), Rebus(scene), Wolverine(scene));
    }

    // Names and values of properties that were sent and came back otherwise. An address of another entity comes back as a URI;
    // the window of duplicates is sent where they are detected alone.
    private static IEnumerable<string> Differences(object sent, object back)
    {
        string[] others = ["AuthorizationRules", "DuplicateDetectionHistoryTimeWindow"];
        foreach (var property in sent.GetType().GetProperties().Where(property => !others.Contains(property.Name)))
        {
            var expected = property.GetValue(sent);
            var found = back.GetType().GetProperty(property.Name).GetValue(back);
            if (property.Name == "ForwardTo" && found is string address)
                found = Uri.UnescapeDataString(new Uri(address).AbsolutePath[1..]);
            if (expected is not null && !Equals(expected, found))
                yield return $"{sent.GetType().Name}.{property.Name}: {expected} came back as {found}";
        }
    }

    private static CreateQueueOptions Queue(
        string name, double minutes, long megabytes, int deliveries, bool sessions = false, TimeSpan? life = null, bool expired = false, TimeSpan? idle = null) => new(name)
    {
        AutoDeleteOnIdle = idle ?? TimeSpan.MaxValue,
        LockDuration = TimeSpan.FromMinutes(minutes), MaxSizeInMegabytes = megabytes, MaxDeliveryCount = deliveries, RequiresSession = sessions,
        DefaultMessageTimeToLive = life ?? TimeSpan.MaxValue, DeadLetteringOnMessageExpiration = expired, RequiresDuplicateDetection = false,
        EnableBatchedOperations = true, EnablePartitioning = false, Status = EntityStatus.Active,
    };

    private static CreateTopicOptions Topic(string name, long megabytes, TimeSpan? life = null, TimeSpan? idle = null) => new(name)
    {
        AutoDeleteOnIdle = idle ?? TimeSpan.MaxValue,
        MaxSizeInMegabytes = megabytes, DefaultMessageTimeToLive = life ?? TimeSpan.MaxValue, RequiresDuplicateDetection = false,
        EnableBatchedOperations = true, SupportOrdering = false, EnablePartitioning = false, Status = EntityStatus.Active,
    };

    // A framework's entities, each made after the question whether it is there, and looked at afterwards.
    private sealed class Maker(Scene scene, string framework)
    {
        private readonly ServiceBusAdministrationClient administration = scene.Administration;
        private readonly List<string> differences = [];
        private int made;

        public string Name(string name) => $"{scene.Name}/{framework}/{name}";

        public async Task Make(CreateQueueOptions options)
        {
            if ((await administration.QueueExistsAsync(options.Name)).Value)
                differences.Add($"{options.Name} was there");
            QueueProperties created = await administration.CreateQueueAsync(options);
            QueueProperties found = await administration.GetQueueAsync(options.Name);
            differences.AddRange([.. Differences(options, created), .. Differences(options, found)]);
            QueueProperties updated = await administration.UpdateQueueAsync(found);
            differences.AddRange(Differences(options, updated));
            made++;
        }

        public async Task Make(CreateTopicOptions options)
        {
            TopicProperties created = await administration.CreateTopicAsync(options);
            TopicProperties found = await administration.GetTopicAsync(options.Name);
            differences.AddRange([.. Differences(options, created), .. Differences(options, found)]);
            TopicProperties updated = await administration.UpdateTopicAsync(found);
            differences.AddRange(Differences(options, updated));
            made++;
        }

        public async Task Make(CreateSubscriptionOptions options, CreateRuleOptions rule)
        {
            var (topic, name) = (options.TopicName, options.SubscriptionName);
            if ((await administration.SubscriptionExistsAsync(topic, name)).Value)
                differences.Add($"{name} was there");
            SubscriptionProperties created = await administration.CreateSubscriptionAsync(options, rule);
            SubscriptionProperties found = await administration.GetSubscriptionAsync(topic, name);
            differences.AddRange([.. Differences(options, created), .. Differences(options, found)]);
            SubscriptionProperties updated = await administration.UpdateSubscriptionAsync(found);
            differences.AddRange(Differences(options, updated));
            await foreach (var each in administration.GetRulesAsync(topic, name))
                if (each.Name != rule.Name || !each.Filter.Equals(rule.Filter))
                    differences.Add($"rule {rule.Name} {rule.Filter} came back as {each.Name} {each.Filter}");
            made++;
        }

        // A second instance of the service makes what is there.
        public async Task Again(string what, Func<Task> make) => scene.Found($"{framework} {what}", await Report.Failure(make));

        public void Found()
        {
            scene.Found($"{framework} made", made);
            scene.Found($"{framework} differences", differences);
        }
    }

    private static readonly CreateRuleOptions Everything = new("$Default", new TrueRuleFilter());

    private static async Task MassTransit(Scene scene)
    {
        var maker = new Maker(scene, "MassTransit");
        foreach (var (name, sessions) in new[] { ("order", false), ("sess", true), ("order-state", false), ("order_error", false), ("vm_app_bus", false) })
            await maker.Make(Queue(maker.Name(name), 5, 1024, 5, sessions, Year, expired: true, idle: name == "vm_app_bus" ? Brief : Kept));
        foreach (var (topic, target) in new[] { ("Shop/Order", "order"), ("Shop/Sess", "sess"), ("MassTransit/Fault--Shop/Bad--", "order-state") })
        {
            await maker.Make(Topic(maker.Name(topic), 1024, Year, Kept));
            await maker.Make(Subscription(maker.Name(topic), target, maker.Name(target)), Everything);
        }
        await maker.Make(Topic(maker.Name("MassTransit/Fault"), 1024, Year, Kept));
        await maker.Make(Subscription(maker.Name("MassTransit/Fault--Shop/Bad--"), "Fault-MassTransit", maker.Name("MassTransit/Fault")), Everything);
        // A subscription endpoint has no target.
        await maker.Make(Subscription(maker.Name("Shop/Order"), "subscriber", null), Everything);
        maker.Found();

        CreateSubscriptionOptions Subscription(string topic, string name, string target) => new(topic, name)
        {
            LockDuration = TimeSpan.FromMinutes(1), RequiresSession = false, DefaultMessageTimeToLive = Year, DeadLetteringOnMessageExpiration = false,
            EnableDeadLetteringOnFilterEvaluationExceptions = true, MaxDeliveryCount = 10, EnableBatchedOperations = true,
            Status = EntityStatus.Active, ForwardTo = target, AutoDeleteOnIdle = target is null ? TimeSpan.MaxValue : Kept,
        };
    }

    private static async Task NServiceBus(Scene scene)
    {
        var maker = new Maker(scene, "NServiceBus");
        // The first question, about a name that nobody can have.
        await maker.Again("verification", async () =>
        {
            if ((await scene.Administration.QueueExistsAsync("$nservicebus-verification-queue")).Value)
                throw new InvalidDataException("it is there");
        });
        foreach (var name in new[] { "ns2.error", "ns2.audit", "ns2.sales", "ns2.sales-node1", "ns2.billing" })
            await maker.Make(Queue(maker.Name(name), 5, 5120, 10));
        var topic = Topic(maker.Name("App.Placed"), 5120);
        await maker.Make(topic);
        await maker.Again("topic again", () => scene.Administration.CreateTopicAsync(topic));
        var subscription = new CreateSubscriptionOptions(topic.Name, "ns2.sales")
        {
            LockDuration = TimeSpan.FromMinutes(5), DeadLetteringOnMessageExpiration = false, EnableDeadLetteringOnFilterEvaluationExceptions = false,
            MaxDeliveryCount = 10, EnableBatchedOperations = true, ForwardTo = maker.Name("ns2.sales"), UserMetadata = "ns2.sales",
        };
        await maker.Make(subscription, Everything);
        await maker.Again("subscription again", () => scene.Administration.CreateSubscriptionAsync(subscription));
        // Events by rules in one topic, in which nothing is subscribed at first.
        var hierarchy = Topic(maker.Name("bundle-1"), 5120);
        await maker.Make(hierarchy);
        await maker.Make(
            new CreateSubscriptionOptions(hierarchy.Name, "ns2.billing") { ForwardTo = maker.Name("ns2.billing") },
            new CreateRuleOptions("$default", new FalseRuleFilter()));
        await maker.Again("rule", () => scene.Administration.CreateRuleAsync(
            hierarchy.Name, "ns2.billing", new CreateRuleOptions("App.Placed", new SqlRuleFilter("[NServiceBus.EnclosedMessageTypes] LIKE '%App.Placed%'"))));
        await maker.Again("unsubscribe", () => scene.Administration.DeleteSubscriptionAsync(topic.Name, "ns2.sales"));
        await maker.Again("unsubscribe again", () => scene.Administration.DeleteSubscriptionAsync(topic.Name, "ns2.sales"));
        maker.Found();
    }

    private static async Task Rebus(Scene scene)
    {
        var maker = new Maker(scene, "Rebus");
        foreach (var (name, deliveries) in new[] { ("pubsub1", 100), ("error", 10), ("pubsub2", 100) })
            await maker.Make(Queue(maker.Name(name), 1, 1024, deliveries));
        var topic = maker.Name("System.Private.CoreLib/System.String");
        await maker.Make(Topic(topic, 1024));
        foreach (var name in new[] { "pubsub1", "pubsub2" })
            await maker.Make(new CreateSubscriptionOptions(topic, name) { ForwardTo = maker.Name(name) }, Everything);
        await maker.Again("delete", () => scene.Administration.DeleteTopicAsync(topic));
        await maker.Again("deleted", () => scene.Administration.GetTopicAsync(topic));
        maker.Found();
    }

    private static async Task Wolverine(Scene scene)
    {
        var maker = new Maker(scene, "Wolverine");
        foreach (var name in new[] { "ping", "wolverine.retries.app", "wolverine.response.app.1", "wolverine-dead-letter-queue" })
            await maker.Make(Queue(maker.Name(name), 1, 1024, 10, idle: name.StartsWith("wolverine.response") ? Brief : null));
        await maker.Make(Queue(maker.Name("sess"), 1, 1024, 10, sessions: true));
        var topic = maker.Name("topic");
        await maker.Make(Topic(topic, 1024));
        await maker.Make(new CreateSubscriptionOptions(topic, "all"), Everything);
        await maker.Make(new CreateSubscriptionOptions(topic, "red"), new CreateRuleOptions("red", new SqlRuleFilter("color = 'red'")));
        maker.Found();
    }
}
