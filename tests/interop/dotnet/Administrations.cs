// The administration client: entities that are made, changed, listed and deleted, their counts, rules with values of all types, errors.
public static class Administrations
{
    public static async Task Run(Scene scene)
    {
        await Task.WhenAll(Entities(scene), Rules(scene), Counts(scene), Errors(scene));
        NamespaceProperties properties = await scene.Administration.GetNamespacePropertiesAsync();
        scene.Found("namespace", $"{properties.MessagingSku} {properties.Name.Length > 0}");
    }

    private static async Task Entities(Scene scene)
    {
        var administration = scene.Administration;
        var queue = new CreateQueueOptions($"{scene.Name}/queue")
        {
            DefaultMessageTimeToLive = TimeSpan.FromDays(2), DuplicateDetectionHistoryTimeWindow = TimeSpan.FromMinutes(1), EnableBatchedOperations = false,
            DeadLetteringOnMessageExpiration = true, LockDuration = TimeSpan.FromSeconds(45), MaxDeliveryCount = 8, MaxSizeInMegabytes = 1024,
            RequiresDuplicateDetection = true, UserMetadata = "about it", Status = EntityStatus.Disabled, MaxMessageSizeInKilobytes = 100_000,
        };
        QueueProperties made = await administration.CreateQueueAsync(queue);
        QueueProperties found = await administration.GetQueueAsync(queue.Name);
        scene.Found("queue", $"{new CreateQueueOptions(made).Equals(queue)} {made.Equals(found)}");
        (found.MaxDeliveryCount, found.EnableBatchedOperations, found.UserMetadata) = (9, true, "more");
        QueueProperties updated = await administration.UpdateQueueAsync(found);
        scene.Found("queue updated", updated.Equals(found));

        var topic = new CreateTopicOptions($"{scene.Name}/topic")
        {
            DefaultMessageTimeToLive = TimeSpan.FromDays(2), DuplicateDetectionHistoryTimeWindow = TimeSpan.FromMinutes(1), MaxSizeInMegabytes = 1024,
            RequiresDuplicateDetection = true, UserMetadata = "about it", MaxMessageSizeInKilobytes = 100_000,
        };
        TopicProperties madeTopic = await administration.CreateTopicAsync(topic);
        TopicProperties foundTopic = await administration.GetTopicAsync(topic.Name);
        scene.Found("topic", $"{new CreateTopicOptions(madeTopic).Equals(topic)} {madeTopic.Equals(foundTopic)}");
        (foundTopic.DefaultMessageTimeToLive, foundTopic.DuplicateDetectionHistoryTimeWindow) = (TimeSpan.FromDays(3), TimeSpan.FromMinutes(2));
        TopicProperties updatedTopic = await administration.UpdateTopicAsync(foundTopic);
        scene.Found("topic updated", updatedTopic.Equals(foundTopic));

        var options = new CreateSubscriptionOptions(topic.Name, "sub")
        {
            DefaultMessageTimeToLive = TimeSpan.FromDays(2), DeadLetteringOnMessageExpiration = true, EnableBatchedOperations = false,
            LockDuration = TimeSpan.FromSeconds(45), MaxDeliveryCount = 8, RequiresSession = true, UserMetadata = "about it",
        };
        SubscriptionProperties madeOne = await administration.CreateSubscriptionAsync(options);
        SubscriptionProperties foundOne = await administration.GetSubscriptionAsync(topic.Name, "sub");
        scene.Found("subscription", $"{new CreateSubscriptionOptions(madeOne).Equals(options)} {new CreateSubscriptionOptions(foundOne).Equals(options)}");
        (foundOne.DefaultMessageTimeToLive, foundOne.MaxDeliveryCount) = (TimeSpan.FromDays(3), 9);
        SubscriptionProperties updatedOne = await administration.UpdateSubscriptionAsync(foundOne);
        scene.Found("subscription updated", updatedOne.Equals(foundOne));

        var names = new List<string>();
        await foreach (var each in administration.GetQueuesAsync())
            names.Add(each.Name);
        await foreach (var each in administration.GetTopicsAsync())
            names.Add(each.Name);
        await foreach (var each in administration.GetSubscriptionsAsync(topic.Name))
            names.Add($"{each.TopicName} {each.SubscriptionName}");
        scene.Found("listed", new[] { queue.Name, topic.Name, $"{topic.Name} sub" }.All(names.Contains));
        await administration.DeleteSubscriptionAsync(topic.Name, "sub");
        await administration.DeleteTopicAsync(topic.Name);
        await administration.DeleteQueueAsync(queue.Name);
        scene.Found("deleted", new[]
        {
            (await administration.QueueExistsAsync(queue.Name)).Value, (await administration.TopicExistsAsync(topic.Name)).Value,
            (await administration.SubscriptionExistsAsync(topic.Name, "sub")).Value,
        });
    }

    private static async Task Rules(Scene scene)
    {
        var (administration, topic) = (scene.Administration, await scene.Topic("ruled"));
        var first = new CreateRuleOptions("first", new TrueRuleFilter());
        await administration.CreateSubscriptionAsync(new CreateSubscriptionOptions(topic, "sub"), first);
        var time = DateTime.UtcNow;
        var second = new CreateRuleOptions("second", new SqlRuleFilter(
            "text = @text AND whole = @whole AND long = @long AND time = @time AND span = @span AND PROPERTY(@name) = @flag AND PROPERTY(part) = @part")
        {
            Parameters =
            {
                ["@text"] = "text", ["@whole"] = 1, ["@long"] = 12L, ["@time"] = time, ["@span"] = TimeSpan.FromDays(1), ["@name"] = "flagged",
                ["@flag"] = true, ["@part"] = 3.0,
            },
        }) { Action = new SqlRuleAction("SET a='b'") };
        var third = new CreateRuleOptions("third", new CorrelationRuleFilter("id")
        {
            Subject = "subject", ApplicationProperties = { ["text"] = "text", ["whole"] = 5, ["time"] = time },
        });
        await administration.CreateRuleAsync(topic, "sub", second);
        await administration.CreateRuleAsync(topic, "sub", third);
        var rules = new List<RuleProperties>();
        await foreach (var rule in administration.GetRulesAsync(topic, "sub"))
            rules.Add(rule);
        scene.Found("rules", rules.Zip(new[] { first, second, third }, (rule, options) => new CreateRuleOptions(rule).Equals(options)));
        ((CorrelationRuleFilter)rules[2].Filter).CorrelationId = "changed";
        RuleProperties updated = await administration.UpdateRuleAsync(topic, "sub", rules[2]);
        scene.Found("rule updated", updated.Equals(rules[2]));
        await administration.DeleteRuleAsync(topic, "sub", "first");
        scene.Found("rule deleted", (await administration.RuleExistsAsync(topic, "sub", "first")).Value);
        scene.Found("rule not there", await Report.Failure(() => administration.GetRuleAsync(topic, "sub", "first")));
    }

    private static async Task Counts(Scene scene)
    {
        var (administration, queue, topic) = (scene.Administration, await scene.Queue("counted"), await scene.Topic("counted topic"));
        await administration.CreateSubscriptionAsync(topic, "sub");
        await using var client = new ServiceBusClient(scene.ConnectionString);
        var times = new List<bool>();
        foreach (var (sender, receiver) in new[]
        {
            (client.CreateSender(queue), client.CreateReceiver(queue)), (client.CreateSender(topic), client.CreateReceiver(topic, "sub")),
        })
        {
            await sender.SendMessagesAsync([new("1"), new("2")]);
            await sender.SendMessageAsync(new ServiceBusMessage("3") { ScheduledEnqueueTime = DateTimeOffset.UtcNow.AddDays(1) });
            await receiver.DeadLetterMessageAsync(await receiver.ReceiveMessageAsync(Scene.Patience));
        }
        QueueRuntimeProperties one = await administration.GetQueueRuntimePropertiesAsync(queue);
        SubscriptionRuntimeProperties two = await administration.GetSubscriptionRuntimePropertiesAsync(topic, "sub");
        TopicRuntimeProperties three = await administration.GetTopicRuntimePropertiesAsync(topic);
        scene.Found("queue counts", $"{one.ActiveMessageCount} {one.DeadLetterMessageCount} {one.ScheduledMessageCount} {one.TotalMessageCount} {one.SizeInBytes > 0}");
        scene.Found("subscription counts", $"{two.ActiveMessageCount} {two.DeadLetterMessageCount} {two.TotalMessageCount}");
        scene.Found("topic counts", $"{three.ScheduledMessageCount} {three.SubscriptionCount}");
        scene.Found("times", one.CreatedAt <= one.UpdatedAt && one.UpdatedAt <= one.AccessedAt && two.CreatedAt <= two.UpdatedAt && three.CreatedAt <= three.UpdatedAt);
        var listed = new List<QueueRuntimeProperties>();
        await foreach (var each in administration.GetQueuesRuntimePropertiesAsync())
            listed.Add(each);
        scene.Found("listed counts", listed.Single(each => each.Name == queue).TotalMessageCount);
    }

    private static async Task Errors(Scene scene)
    {
        var (administration, queue, topic) = (scene.Administration, await scene.Queue("there"), await scene.Topic("there topic"));
        await administration.CreateSubscriptionAsync(topic, "sub");
        var missing = $"{scene.Name}/missing";
        // The properties of what is not there are those of something else, by another name: an update needs an object.
        QueueProperties properties = await administration.GetQueueAsync(queue);
        await administration.DeleteQueueAsync(queue);
        Func<Task>[] calls =
        [
            () => administration.GetQueueAsync(missing), () => administration.GetTopicAsync(missing), () => administration.GetSubscriptionAsync(missing, "sub"),
            () => administration.GetSubscriptionAsync(topic, "missing"), () => administration.UpdateQueueAsync(properties),
            () => administration.DeleteQueueAsync(missing), () => administration.DeleteTopicAsync(missing),
            () => administration.DeleteSubscriptionAsync(topic, "missing"), () => administration.GetQueueAsync(topic),
        ];
        var failures = new List<string>();
        foreach (var call in calls)
            failures.Add(await Report.Failure(call));
        scene.Found("missing", failures.Distinct());
        await administration.CreateQueueAsync(queue);
        scene.Found("kinds", await Report.Failure(() => administration.GetTopicAsync(queue)));
        Func<Task>[] again =
        [
            () => administration.CreateQueueAsync(queue), () => administration.CreateTopicAsync(topic), () => administration.CreateSubscriptionAsync(topic, "sub"),
            () => administration.CreateQueueAsync(topic), () => administration.CreateRuleAsync(topic, "sub", new CreateRuleOptions("$Default", new TrueRuleFilter())),
        ];
        failures.Clear();
        foreach (var call in again)
            failures.Add(await Report.Failure(call));
        scene.Found("again", failures.Distinct());
    }
}
