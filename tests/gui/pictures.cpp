// SPDX-License-Identifier: GPL-3.0-only
#include <QApplication>
#include <QComboBox>
#include <QCommandLineParser>
#include <QDialog>
#include <QDir>
#include <QLineEdit>
#include <QSpinBox>
#include <QTabWidget>
#include <QTest>
#include <QTextStream>
#include <QTimer>

#include "app/views/audit_view.h"
#include "app/views/experts_view.h"
#include "app/views/faults_view.h"
#include "app/views/fleet_map_panel.h"
#include "app/views/fleet_view.h"
#include "app/views/job_commands.h"
#include "app/views/placement_view.h"
#include "app/views/screenshots.h"
#include "tests/app/support/console.h"
#include "tests/app/support/made_fleet.h"
#include "tests/app/support/sample_campaign.h"

namespace {

using namespace bulkhead;

void addRuns(test::Console& console) {
    for (int i = 0; i < 5; ++i) {
        model::RunInfo run;
        run.id = "demo-" + std::to_string(5 - i);
        run.workload = "llama_moe";
        run.phase = i == 0   ? "training"
                    : i == 2 ? "superseded by demo-4"
                    : i == 3 ? "interrupted"
                             : "finished";
        run.startedNs = test::SampleRun::kStartNs - i * 7'200'000'000'000;
        run.endedNs = run.startedNs + 54'000'000'000 * (i + 1);
        run.replicas = 4;
        run.shards = 2;
        run.steps = 140 + 37ull * static_cast<uint64_t>(i);
        run.incidents = static_cast<uint64_t>(2 * i);
        run.faults = static_cast<uint64_t>(i);
        run.lastLoss = 1.9 - 0.05 * i;
        run.effectiveTime = 0.97 - 0.01 * i;
        console.log->runs.push_back(run);
    }
}

void lose(test::Console& console) {
    console.log->jobs.onDisconnected(
        {client::FailureCode::kUnreachable, "Connection lost",
         "Nobody answers at unix:/tmp/fake.sock.", "Start the daemon again.", true},
        std::chrono::steady_clock::now() + std::chrono::seconds(30));
}

/// Both schemes of the window as it stands, for states in which nothing more is to come.
int grab(test::Console& console, const QString& folder, const QString& name) {
    QDir().mkpath(folder);
    for (const ui::Scheme scheme : {ui::Scheme::kDark, ui::Scheme::kLight}) {
        ui::theme().setScheme(scheme);
        console.settle();
        const char* word = scheme == ui::Scheme::kDark ? "dark" : "light";
        console.window->grab().save(
            QStringLiteral("%1/%2-%3.png").arg(folder, name, QLatin1String(word)));
        for (const QDialog* dialog : console.window->findChildren<QDialog*>())
            if (dialog->isVisible())
                const_cast<QDialog*>(dialog)->grab().save(
                    QStringLiteral("%1/%2-%3.png")
                        .arg(folder, dialog->objectName(), QLatin1String(word)));
    }
    return 0;
}

/// The Campaigns page alone: one under way, or one with its verdict.
int grabCampaign(test::Console& console, const QString& folder, const QString& state) {
    console.log->campaign.preflight.effect =
        "123 faults within 15 min: 10\u00a0\u00d7\u00a0rank killed, 7\u00a0\u00d7\u00a0replica "
        "killed, 29\u00a0\u00d7\u00a0hang, 6\u00a0\u00d7\u00a0network cut. A fault that would "
        "leave "
        "fewer than 2 of 4 replicas training is held back.";
    console.goLive(36);
    test::playCampaign(console, 58);
    if (state == u"verdict") test::endCampaign(console);
    auto& faults = console.view<ui::FaultsView>();
    faults.showCampaigns();
    console.window->layout().toggleOnly(&faults);
    const bool told = QTest::qWaitFor([&] { return console.says("123 faults"); });
    return grab(console, folder, QStringLiteral("campaign-") + state) + (told ? 0 : 1);
}

/// The Placement page with a plan that the planner proposed.
int grabPlan(test::Console& console, const QString& folder) {
    auto& page = console.view<ui::PlacementView>();
    console.window->layout().toggleOnly(&page);
    console.actions.find("placement.propose")->trigger();
    const bool told = QTest::qWaitFor([&] { return console.says("Proposed by the planner."); });
    return grab(console, folder, QStringLiteral("plan")) + (told ? 0 : 1);
}

/// The Placement page while a long search for plans goes on.
int grabSearch(test::Console& console, const QString& folder) {
    auto& page = console.view<ui::PlacementView>();
    console.window->layout().toggleOnly(&page);
    auto* effort = page.findChild<QSpinBox*>();
    effort->setValue(effort->maximum());
    console.actions.find("placement.propose")->trigger();
    const bool told = QTest::qWaitFor([&] { return console.says("Best so far"); }, 120'000);
    const int failed = grab(console, folder, QStringLiteral("search"));
    console.actions.find("placement.stop")->trigger();
    return failed + (told ? 0 : 1);
}

/// The Placement page with rules kept and broken, the list of plans, and a plan that waits.
int grabPins(test::Console& console, const QString& folder) {
    auto& page = console.view<ui::PlacementView>();
    console.window->layout().toggleOnly(&page);
    model::Action rule;
    rule.kind = model::ActionKind::kRuleExperts;
    rule.rules = {{0, 2, 0, true}, {0, 5, 0, false}, {0, 9, 1, true}, {1, 4, 1, false}};
    console.send({console.run.done(rule)});
    model::Action layout;
    layout.expertShard = console.feed.state().model.expertShard;
    layout.predictedRemote = 0.34;
    console.send({console.run.propose(
        layout, "51.2 % of copies leave their shard, 42.0 % were predicted of layout 0")});
    auto* tabs = page.findChild<QTabWidget*>();
    tabs->setCurrentIndex(4);
    grab(console, folder, QStringLiteral("pins"));
    console.actions.find("placement.propose")->trigger();
    const bool told = QTest::qWaitFor([&] { return console.says("Proposed by the planner."); });
    tabs->setCurrentIndex(2);
    grab(console, folder, QStringLiteral("front"));
    for (const char* id : {"placement.import", "placement.export"})
        console.actions.find(QString::fromLatin1(id))->trigger();
    for (QDialog* dialog : console.window->findChildren<QDialog*>())
        if (dialog->objectName().isEmpty()) dialog->setObjectName(dialog->windowTitle());
    return grab(console, folder, QStringLiteral("front")) + (told ? 0 : 1);
}

/// The tabs of the Experts page, of a recording of routing.
int grabStudy(test::Console& console, const QString& folder, const QString& recording) {
    auto& page = console.view<ui::ExpertsView>();
    console.window->layout().toggleOnly(&page);
    page.openRecording(recording);
    auto* tabs = page.findChild<QTabWidget*>();
    const bool read =
        QTest::qWaitFor([&] { return console.actions.find("experts.live")->isEnabled(); }, 60'000);
    for (int tab = 0; tab < tabs->count(); ++tab) {
        tabs->setCurrentIndex(tab);
        grab(console, folder, QStringLiteral("experts-%1").arg(tab));
    }
    return read ? 0 : 1;
}

/// The Audit page of an administrator, then of somebody who may not read it.
int grabAudit(test::Console& console, const QString& folder) {
    const struct {
        const char *principal, *via, *peer, *call, *object;
        uint64_t revision;
        const char *outcome, *message;
        uint64_t repeated;
    } kept[] = {
        {"anna", "certificate", "ipv4:10.0.0.7:51234", "sign in", "", 0, "ok", "", 0},
        {"anna", "certificate", "ipv4:10.0.0.7:51234", "Jobs/StartJob", "", 0, "ok",
         "job demo at revision 1, step 0", 0},
        {"", "", "ipv4:192.168.4.19:40022", "Jobs/ListJobs", "", 0, "UNAUTHENTICATED",
         "The token is not one that this daemon knows.", 118},
        {"dashboard", "token", "ipv4:10.0.0.12:39914", "sign in", "", 0, "ok", "", 0},
        {"dashboard", "token", "ipv4:10.0.0.12:39914", "Jobs/Act", "demo", 0, "PERMISSION_DENIED",
         "This call (Jobs/Act) needs the role operator, and dashboard has the role viewer", 0},
        {"olga", "token", "ipv6:[fd00::17]:41234", "Jobs/Act", "demo", 4, "ABORTED",
         "The job is at revision 6 now: replica 2 was drained", 0},
        {"olga", "token", "ipv6:[fd00::17]:41234", "Jobs/Act", "demo", 6, "ok",
         "job demo at revision 7, step 41", 0},
        {"mike", "socket", "unix:", "Jobs/InjectFault", "demo", 7, "ok", "fault: 3", 0}};
    uint64_t seq = 0;
    for (int round = 0; round < 4; ++round)
        for (const auto& k : kept) {
            ++seq;
            console.log->audit.push_back(
                {seq, test::SampleRun::kStartNs + static_cast<int64_t>(seq) * 17'000'000'000,
                 k.principal, k.via, k.peer, "", k.call, k.object, k.revision, "", k.outcome,
                 k.message, k.repeated});
        }
    auto& page = console.view<ui::AuditView>();
    console.window->layout().raise(&page);
    const bool told = QTest::qWaitFor([&] { return page.shownRows() == 32; });
    const auto speak = [&] {  // else the job is shown as unknown
        console.log->run.onSnapshot(console.log->state);
        (void)QTest::qWaitFor([&] { return !console.session->status().unknown; });
    };
    speak();
    grab(console, folder, QStringLiteral("audit-window"));
    console.window->layout().toggleOnly(&page);
    speak();
    grab(console, folder, QStringLiteral("audit"));
    speak();
    console.log->server.role = "operator";
    console.log->jobs.onConnected(console.log->server);
    const bool refused = QTest::qWaitFor([&] { return console.says("has the role operator"); });
    return grab(console, folder, QStringLiteral("audit-operator")) + (told && refused ? 0 : 1);
}

/// The Fleet page with a node's GPUs, one of which has fallen off the bus and one is mute.
int grabGpus(test::Console& console, const QString& folder) {
    model::NodeSample node;
    node.node = "node0";
    for (uint32_t g = 0; g < 4; ++g) {
        model::GpuSample gpu;
        gpu.gpu = g;
        if (g < 3) {
            gpu.name = "NVIDIA H100 80GB HBM3";
            gpu.busyPercent = 97 - g;
            gpu.memoryTotalBytes = 80ull << 30;
            gpu.memoryUsedBytes = (60ull + g) << 30;
            gpu.temperatureCelsius = 61 + g;
            gpu.powerWatts = 640 + 7 * g;
            gpu.clockMhz = 1980;
            gpu.memoryClockMhz = 2619;
            gpu.eccUncorrected = 0;
        }
        if (g == 3) gpu.lastXid = 79;
        node.gpus.push_back(gpu);
    }
    model::FleetSampled fleet;
    fleet.nodes.push_back(node);
    for (int32_t s = 0; s < 2; ++s) {
        model::RankSample rank;
        rank.rank = {0, s};
        rank.incarnation = 1;
        rank.phase = model::RankPhase::kCompute;
        rank.gpuPercent = 97 - s;
        rank.gpus = {static_cast<uint32_t>(s)};
        fleet.ranks.push_back(rank);
    }
    std::vector<model::Event> events(2);
    for (size_t i = 0; i < events.size(); ++i) {
        events[i].seq = console.feed.state().seq + 1 + i;
        events[i].timeNs = console.feed.state().lastEventNs;
    }
    events[0].body = std::move(fleet);
    events[1].severity = model::Severity::kError;
    events[1].body =
        model::GpuTroubled{"node0", 3, "", 79, std::nullopt, events[1].timeNs, {{1, 1}}};
    console.send(std::move(events));
    console.view<ui::FleetView>().selectNode(QStringLiteral("node0"));
    return grab(console, folder, QStringLiteral("gpus"));
}

/// The Fleet page as a map: by each figure, zoomed in, searched, and in its usual dock.
int grabMap(test::Console& console, const QString& folder, const QString& size) {
    const QStringList sides = size.split(u'x');
    QDir().mkpath(folder);
    auto state = std::make_shared<model::RunState>(
        test::madeFleet({sides.value(0).toInt(), sides.value(1).toInt(), sides.value(2).toInt()}));
    state->seq = console.feed.state().seq + 1;
    console.log->run.onSnapshot(console.log->state = state);
    const bool there = QTest::qWaitFor(
        [&] { return console.feed.state().ranks.size() == state->ranks.size(); }, 20'000);
    const auto picture = [&](const QString& name) {
        for (const ui::Scheme scheme : {ui::Scheme::kDark, ui::Scheme::kLight}) {
            ui::theme().setScheme(scheme);
            // A run of which nothing comes is shown as unknown.
            console.log->run.onSnapshot(state);
            (void)QTest::qWaitFor([&] { return !console.session->status().unknown; });
            console.settle();
            const char* word = scheme == ui::Scheme::kDark ? "dark" : "light";
            console.window->grab().save(
                QStringLiteral("%1/%2-%3.png").arg(folder, name, QLatin1String(word)));
        }
    };
    auto& page = console.view<ui::FleetView>();
    page.choose(true);
    (void)QTest::qWaitFor([&] { return !page.mapPanel().map().shape().ranks.empty(); });
    page.select(0, 1);
    picture(QStringLiteral("map-dock"));
    console.window->layout().toggleOnly(&page);
    auto* figure = page.mapPanel().findChild<QComboBox*>();
    for (int i = 0; i < figure->count(); ++i) {
        figure->setCurrentIndex(i);
        Q_EMIT figure->activated(i);
        picture(QStringLiteral("map-%1").arg(i));
    }
    figure->setCurrentIndex(1);
    Q_EMIT figure->activated(1);
    ui::FleetMap& map = page.mapPanel().map();
    for (int zoom = 1; zoom < map.layoutOfMap().levels(); zoom += 3) {
        map.showAll();
        map.zoom(zoom);
        map.reveal({0, 1});
        picture(QStringLiteral("map-zoom-%1").arg(zoom));
    }
    map.showAll();
    page.mapPanel().findChild<QLineEdit*>()->setText(QStringLiteral("r1"));
    picture(QStringLiteral("map-find"));
    return there ? 0 : 1;
}

}  // namespace

/// Pictures of every view on the made-up run, for judging the design without a daemon.
int main(int argc, char** argv) {
    if (qEnvironmentVariableIsEmpty("QT_QPA_PLATFORM")) qputenv("QT_QPA_PLATFORM", "offscreen");
    QApplication app(argc, argv);
    QCommandLineParser parser;
    parser.addHelpOption();
    parser.addPositionalArgument("folder", "where the pictures go");
    parser.addOptions(
        {{"steps", "of the run (46: an incident goes on)", "n", "94"},
         {"width", "of the window", "px", "1600"},
         {"height", "of the window", "px", "1000"},
         {"map", "of a fleet of so many replicas, ranks and GPUs per node: the Fleet page",
          "12x8192x8"},
         {"recording", "of routing: the Experts page's tabs of it", "file"},
         {"state",
          "live, empty, lost, dialogs, campaign, verdict, plan, search, pins, gpus, or audit",
          "state", "live"}});
    parser.process(app);
    const QString folder = parser.positionalArguments().value(0, QStringLiteral("pictures"));
    const QString state = parser.value("state");
    ui::Theme theme(app, ui::Scheme::kDark);
    test::Console console;
    console.window->resize(parser.value("width").toInt(), parser.value("height").toInt());
    console.window->layout().arrange();
    addRuns(console);
    if (state == u"campaign" || state == u"verdict") return grabCampaign(console, folder, state);
    if (state == u"empty") return grab(console, folder, state);
    console.log->server.principal = "olga";
    console.log->server.role = "admin";
    console.goLive(parser.value("steps").toInt());
    if (state == u"lost") {
        lose(console);
        if (!QTest::qWaitFor([&] { return console.says("Next try"); })) return 1;
        return grab(console, folder, state);
    }
    if (state == u"gpus") return grabGpus(console, folder);
    if (state == u"audit") return grabAudit(console, folder);
    if (state == u"plan") return grabPlan(console, folder);
    if (state == u"search") return grabSearch(console, folder);
    if (state == u"pins") return grabPins(console, folder);
    if (parser.isSet("map")) return grabMap(console, folder, parser.value("map"));
    if (parser.isSet("recording")) return grabStudy(console, folder, parser.value("recording"));
    if (state == u"dialogs") {
        ui::DialogConfirmer confirmer;
        console.log->preflight.title = "Drain replica 2";
        console.log->preflight.effect =
            "Replica 2 leaves after its current commit and stays out; 3 of 4 replicas train on.";
        confirmer.ask(console.window.get(),
                      ui::JobCommands::requestFor(console.log->preflight, "Drain replica 2", true),
                      [](int) {});
        for (const char* id :
             {"job.policy", "file.job", "file.attach", "jobs.switch", "help.palette", "help.keys"})
            console.actions.find(QString::fromLatin1(id))->trigger();
        // The policy with the longest words.
        auto paced = std::make_shared<model::RunState>(*console.log->state);
        paced->policies.parityEverySteps.reset();
        paced->parityPace = {8, 38, 420};
        console.log->run.onSnapshot(console.log->state = paced);
        for (auto* policy : console.window->findChildren<QComboBox*>())
            if (const int i = policy->findData("parity_every_steps"); i >= 0)
                policy->setCurrentIndex(i);
        return grab(console, folder, state);
    }
    // A run of which nothing comes is shown as unknown.
    QTimer speaks;
    QObject::connect(&speaks, &QTimer::timeout, &app,
                     [&console] { console.log->run.onSnapshot(console.log->state); });
    speaks.start(500);
    ui::Screenshots::Options options;
    options.folder = folder;
    options.seconds = 1;
    ui::Screenshots pictures(*console.window, console.feed, *console.session, options);
    QObject::connect(&pictures, &ui::Screenshots::finished, &app,
                     [](bool ok, const QString& words) {
                         QTextStream(stdout) << words << '\n';
                         QApplication::exit(ok ? 0 : 1);
                     });
    pictures.start();
    return QApplication::exec();
}
