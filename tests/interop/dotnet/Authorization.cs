// AuthorizationRules of entities, as a program for Service Bus uses them: ADMINISTRATION_STRING ENDPOINT PREFIX.
// The endpoint is that of both, as Endpoint=sb://HOST:PORT without a key.
public static class Authorization
{
    private static readonly TimeSpan Wait = TimeSpan.FromSeconds(10);

    public static async Task Run(string[] arguments)
    {
        var (prefix, admin) = (arguments[2], new ServiceBusAdministrationClient(arguments[0]));
        // Without its EntityPath the SDK signs for everything, which no key of an entity may.
        string With(SharedAccessAuthorizationRule rule, string entity, bool second = false) =>
            $"{arguments[1]};SharedAccessKeyName={rule.KeyName};"
            + $"SharedAccessKey={(second ? rule.SecondaryKey : rule.PrimaryKey)};UseDevelopmentEmulator=true"
            + (entity == "" ? "" : $";EntityPath={entity}");
        ServiceBusClient Client(SharedAccessAuthorizationRule rule, string entity, bool second = false) =>
            new(With(rule, entity, second), Report.Once());

        // As the live tests of the SDK compare what they create, get, list and update.
        var options = new CreateQueueOptions($"{prefix}/Orders");
        options.AuthorizationRules.Add(new SharedAccessAuthorizationRule("all", [AccessRights.Manage, AccessRights.Send, AccessRights.Listen]));
        options.AuthorizationRules.Add(new SharedAccessAuthorizationRule("send", [AccessRights.Send]));
        options.AuthorizationRules.Add(new SharedAccessAuthorizationRule("listen", [AccessRights.Listen]));
        QueueProperties created = await admin.CreateQueueAsync(options);
        QueueProperties got = await admin.GetQueueAsync(options.Name);
        var listed = created;
        await foreach (var each in admin.GetQueuesAsync())
        {
            listed = each.Name == options.Name ? each : listed;
        }
        var first = (SharedAccessAuthorizationRule)got.AuthorizationRules[0];
        Report.Found("same", new[]
        {
            options.AuthorizationRules.Equals(created.AuthorizationRules),
            created.Equals(got),
            !ReferenceEquals(created, listed) && created.Equals(listed),
            first.CreatedTime > DateTimeOffset.UnixEpoch && first.CreatedTime <= first.ModifiedTime,
        });
        var rules = got.AuthorizationRules.Cast<SharedAccessAuthorizationRule>().ToDictionary(each => each.KeyName);

        // Both keys sign; the rights are those of the rule, at this entity alone, however its name is written.
        await admin.CreateQueueAsync($"{prefix}/other");
        await admin.CreateQueueAsync($"{prefix}/Orders/below");
        await using var sends = Client(rules["send"], options.Name);
        await using var listens = Client(rules["listen"], options.Name, second: true);
        await sends.CreateSender(options.Name).SendMessageAsync(new ServiceBusMessage("one"));
        await sends.CreateSender(options.Name.ToLowerInvariant()).SendMessageAsync(new ServiceBusMessage("two"));
        var receiver = listens.CreateReceiver(options.Name);
        var message = await receiver.ReceiveMessageAsync(Wait);
        await receiver.DeadLetterMessageAsync(message, "reason");
        var letters = listens.CreateReceiver(options.Name, new ServiceBusReceiverOptions { SubQueue = SubQueue.DeadLetter });
        var letter = await letters.ReceiveMessageAsync(Wait);
        await letters.CompleteMessageAsync(letter);
        Report.Found("used", new[]
        {
            letter.Body.ToString(),
            (await receiver.PeekMessageAsync()).Body.ToString(),
            (await Client(rules["all"], options.Name, second: true).CreateReceiver(options.Name).PeekMessageAsync()).Body.ToString(),
        });
        Report.Found("refused", new[]
        {
            await Report.Failure(() => sends.CreateReceiver(options.Name).ReceiveMessageAsync(Wait)),
            await Report.Failure(() => sends.CreateReceiver(options.Name).PeekMessageAsync()),
            await Report.Failure(() => listens.CreateSender(options.Name).SendMessageAsync(new ServiceBusMessage("x"))),
            await Report.Failure(() => Client(rules["all"], $"{prefix}/other").CreateSender($"{prefix}/other").SendMessageAsync(new ServiceBusMessage("x"))),
            await Report.Failure(() => Client(rules["all"], $"{prefix}/Orders/below").CreateReceiver($"{prefix}/Orders/below").ReceiveMessageAsync(Wait)),
            await Report.Failure(() => Client(rules["all"], "").CreateReceiver(options.Name).PeekMessageAsync()),
        });

        // A topic's rules are those of its subscriptions.
        var topic = new CreateTopicOptions($"{prefix}/Topic");
        var over = new SharedAccessAuthorizationRule("over", [AccessRights.Manage, AccessRights.Send, AccessRights.Listen]);
        topic.AuthorizationRules.Add(over);
        TopicProperties madeTopic = await admin.CreateTopicAsync(topic);
        await admin.CreateSubscriptionAsync(topic.Name, "Billing");
        await using var overClient = Client(over, topic.Name);
        await overClient.CreateSender(topic.Name).SendMessageAsync(new ServiceBusMessage("topic"));
        await using var billing = overClient.CreateReceiver(topic.Name.ToLowerInvariant(), "billing");
        message = await billing.ReceiveMessageAsync(Wait);
        await billing.CompleteMessageAsync(message);
        Report.Found("topic", new[] { message.Body.ToString(), topic.AuthorizationRules.Equals(madeTopic.AuthorizationRules).ToString() });

        // A new primary key ends what the former one opened, and leaves what the secondary key opened.
        var former = rules["listen"];
        await using var byPrimary = Client(former, options.Name);
        var ended = byPrimary.CreateReceiver(options.Name);
        await ended.CompleteMessageAsync(await ended.ReceiveMessageAsync(Wait));
        got.AuthorizationRules.Remove(got.AuthorizationRules.Single(each => each.KeyName == "listen"));
        got.AuthorizationRules.Add(new SharedAccessAuthorizationRule("listen", new string('n', 44), former.SecondaryKey, [AccessRights.Listen]));
        QueueProperties changed = await admin.UpdateQueueAsync(got);
        Report.Found("changed", changed.AuthorizationRules.Equals(got.AuthorizationRules));
        // A receive that waits at the end of its link may return without a message, before the next one says why.
        var byFormer = "none";
        for (var tries = 0; byFormer == "none" && tries < 100; tries++)
        {
            byFormer = await Report.Failure(() => ended.ReceiveMessageAsync(TimeSpan.FromMilliseconds(100)));
        }
        await sends.CreateSender(options.Name).SendMessageAsync(new ServiceBusMessage("three"));
        var still = await receiver.ReceiveMessageAsync(Wait);
        Report.Found("rotated", new[] { byFormer, still.Body.ToString() });
        changed.AuthorizationRules.Clear();
        changed = await admin.UpdateQueueAsync(changed);
        Report.Found("cleared", new[]
        {
            changed.AuthorizationRules.Count.ToString(),
            await Report.Failure(() => sends.CreateSender(options.Name).SendMessageAsync(new ServiceBusMessage("x"))),
        });
    }
}
