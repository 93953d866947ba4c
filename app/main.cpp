// SPDX-License-Identifier: GPL-3.0-only
#include <fcntl.h>
#include <signal.h>
#include <unistd.h>

#include <QApplication>
#include <QCommandLineParser>
#include <QIcon>
#include <QSocketNotifier>
#include <QTextStream>
#include <algorithm>
#include <cstdio>
#include <initializer_list>
#include <span>

#include "app/views/main_window.h"
#include "app/views/screenshots.h"
#include "app/widgets/theme.h"
#include "backend/model/incident_card.h"
#include "backend/model/parse_number.h"

namespace {

using namespace bulkhead;

void addOptions(QCommandLineParser& parser) {
    parser.setApplicationDescription(
        QStringLiteral("Watches and operates fault tolerant training jobs. Without options it "
                       "starts the demo."));
    parser.addHelpOption();
    parser.addVersionOption();
    parser.addOptions({
        {"attach", "Attach to a daemon: unix:/path or host:port.", "target"},
        {"token-file", "File whose first line a daemon on TCP asks for.", "file"},
        {"certs",
         "Folder with ca.pem, and cert.pem and key.pem of your own, for a daemon with TLS.",
         "folder"},
        {"job", "Start a private daemon with this job file.", "file"},
        {"open", "Open a run file.", "file"},
        {"screenshots", "Save a picture of every view into this folder, then exit.", "folder"},
        {"theme", "light, dark, or both for pictures.", "name"},
        {"seconds", "Pictures: how long to watch the job first (default 30).", "n", "30"},
    });
}

ui::Scheme schemeOf(const QString& name) {
    return name == u"light" ? ui::Scheme::kLight : ui::Scheme::kDark;
}

ui::Screenshots::Options pictureOptions(const QCommandLineParser& parser) {
    ui::Screenshots::Options options;
    options.folder = parser.value("screenshots");
    options.seconds = std::max(1, parser.value("seconds").toInt());
    const QString name = parser.value("theme");
    if (name == u"light" || name == u"dark") options.schemes = {schemeOf(name)};
    return options;
}

void openWanted(const QCommandLineParser& parser, ui::MainWindow& window, ui::Session& session,
                ui::ActionRegistry& actions) {
    using Kind = ui::Recent::Kind;
    if (parser.isSet("attach")) {
        window.open({Kind::kAddress,
                     parser.value("attach"),
                     parser.value("token-file"),
                     {},
                     parser.value("certs")});
    } else if (parser.isSet("open")) {
        window.open({Kind::kFile, parser.value("open"), {}, {}});
    } else if (parser.isSet("job")) {
        client::JobSource job;
        job.file = parser.value("job").toStdString();
        session.startEmbedded(job);
    } else {
        actions.find("file.demo")->trigger();
    }
}

/// The price of a GPU hour, from the environment. Text that is no price is reported, and costs have
/// no money then.
model::Prices pricesOfEnvironment() {
    model::Prices prices;
    const QByteArray text = qgetenv(model::Prices::kGpuHourVariable);
    if (text.isEmpty()) return prices;
    const auto price = model::parseNumber<double>(text.toStdString());
    if (price && *price >= 0)
        prices.gpuHour = *price;
    else
        std::fprintf(stderr, "bulkhead: %s: '%s' is no price; costs are shown without money\n",
                     model::Prices::kGpuHourVariable, text.constData());
    return prices;
}

/// Drops what Qt prints for every dialog on the offscreen platform and for a user without a login
/// session.
void withoutPlatformNoise(QtMsgType type, const QMessageLogContext& context, const QString& text) {
    if (!text.contains(QLatin1String("propagateSizeHints")) &&
        !text.contains(QLatin1String("XDG_RUNTIME_DIR not set")))
        std::fprintf(stderr, "%s\n", qPrintable(qFormatLogMessage(type, context, text)));
}

/// Before the application is made, which chooses its platform then and aborts where it finds none.
/// Pictures, help and the version need no display. False: there is none and one is needed.
bool choosePlatform(std::span<char*> arguments) {
    const auto given = [&](std::initializer_list<const char*> names) {
        return std::ranges::any_of(arguments, [&](QByteArrayView argument) {
            return std::ranges::any_of(names, [&](const char* name) {
                return argument == name || argument.startsWith(QByteArray(name) + '=');
            });
        });
    };
    if (given({"-platform", "--platform"}) || !qEnvironmentVariableIsEmpty("QT_QPA_PLATFORM"))
        return true;
    const bool display =
        !qEnvironmentVariableIsEmpty("DISPLAY") || !qEnvironmentVariableIsEmpty("WAYLAND_DISPLAY");
    const bool pictures = given({"--screenshots"});
    const bool words = given({"-h", "--help", "--help-all", "-v", "--version"});
    if (pictures || (words && !display)) qputenv("QT_QPA_PLATFORM", "offscreen");
    return display || pictures || words;
}

int signalPipe[2];

/// SIGTERM, SIGINT and SIGHUP end the console without a question, and with it what it started: a
/// job of its own writes a checkpoint.
void endOnSignals(QApplication& app, ui::Session& session) {
    if (::pipe2(signalPipe, O_CLOEXEC | O_NONBLOCK) != 0) return;
    for (const int number : {SIGTERM, SIGINT, SIGHUP})
        ::signal(number, [](int) { (void)!::write(signalPipe[1], "", 1); });
    auto* told = new QSocketNotifier(signalPipe[0], QSocketNotifier::Read, &app);
    QObject::connect(told, &QSocketNotifier::activated, &app, [told, &session] {
        told->setEnabled(false);                        // once
        session.endOwn([] { QApplication::exit(0); });  // quit() asks each window
    });
}

}  // namespace

int main(int argc, char** argv) {
    qInstallMessageHandler(withoutPlatformNoise);
    if (!choosePlatform({argv, static_cast<size_t>(argc)})) {
        std::fputs(
            "bulkhead: there is no display (neither DISPLAY nor WAYLAND_DISPLAY is set); save "
            "pictures with --screenshots FOLDER, or use bulkheadctl in this terminal\n",
            stderr);
        return 1;
    }
    QApplication app(argc, argv);
    QApplication::setApplicationName(QStringLiteral("bulkhead"));
    QApplication::setApplicationVersion(QStringLiteral(BULKHEAD_VERSION));
    QApplication::setWindowIcon(QIcon(QStringLiteral(":/icons/bulkhead.svg")));
    QCommandLineParser parser;
    addOptions(parser);
    parser.process(app);

    QSettings settings(QStringLiteral("bulkhead"), QStringLiteral("console"));
    const QString wanted = parser.value("theme");
    ui::Theme theme(app, schemeOf(wanted.isEmpty() ? settings.value("theme").toString() : wanted));
    ui::RunFeed feed;
    ui::TimeCursor cursor;
    ui::Session session(feed, client::Client::open);
    ui::ActionRegistry actions;
    ui::DialogConfirmer confirmer;
    ui::MainWindow window(
        {feed, cursor, session, actions, confirmer, settings, pricesOfEnvironment()});
    window.show();
    endOnSignals(app, session);
    openWanted(parser, window, session, actions);
    if (!parser.isSet("screenshots")) return QApplication::exec();

    window.layout().arrange();
    ui::Screenshots pictures(window, feed, session, pictureOptions(parser));
    QObject::connect(&pictures, &ui::Screenshots::finished, &app,
                     [&session](bool ok, const QString& words) {
                         QTextStream(ok ? stdout : stderr) << "bulkhead: " << words << '\n';
                         session.stopEmbedded([ok] { QApplication::exit(ok ? 0 : 1); });
                     });
    pictures.start();
    return QApplication::exec();
}
