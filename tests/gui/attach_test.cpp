// SPDX-License-Identifier: GPL-3.0-only
#include <QAction>
#include <QLineEdit>
#include <QPushButton>
#include <QTest>
#include <fstream>

#include "app/views/connect_dialog.h"
#include "app/views/status_strip.h"
#include "backend/access/access_list.h"
#include "backend/access/certificates.h"
#include "backend/common/digest.h"
#include "backend/common/file_system.h"
#include "tests/app/support/console.h"
#include "tests/rpc/rpc_fixture.h"

/// The window against a real server: what an operator sees of tokens, lost connections and foreign
/// versions.
namespace bulkhead::testing {
namespace {

class Attach : public RpcTest {
  protected:
    Attach() {
        // A run in which something is to be seen.
        backend_.addJob("demo").phase = model::JobPhase::kTraining;
        for (const model::Event& event : test::SampleRun().events(5))
            backend_.emit("demo", event.body);
    }
    QString address() { return QString::fromStdString(server_->addresses().front()); }
    std::string written(const std::string& name, const std::string& text) {
        const std::string path = dir_ + "/" + name;
        std::ofstream(path) << text;
        std::filesystem::permissions(path, std::filesystem::perms(0600));
        return path;
    }
    /// Ctrl+T, address, token file, certificates, Enter.
    void attach(const QString& address, const std::string& token, const std::string& certs = "") {
        console.press("Ctrl+T");
        auto* dialog = console.window->findChild<ui::ConnectDialog*>();
        ASSERT_NE(dialog, nullptr);
        QTest::keyClicks(console.named("Socket or address", dialog), address);
        QTest::keyClicks(console.named("Token file", dialog), QString::fromStdString(token));
        QTest::keyClicks(console.named("Certificates", dialog), QString::fromStdString(certs));
        QTest::keyClick(console.named("Certificates", dialog), Qt::Key_Return);
    }
    bool waitFor(const std::function<bool()>& condition) {
        return QTest::qWaitFor(condition, 30'000);
    }
    ui::Link link() { return console.session->status().link; }

    test::Console console{0, client::Client::open};
};

TEST_F(Attach, OverTcpWithTheTokenTheRunComesOnScreen) {
    serve(tcpOptions());
    attach(address(), tokenFile());
    ASSERT_TRUE(waitFor([&] { return console.feed.hasRun(); }));
    EXPECT_EQ(link(), ui::Link::kLive);
    EXPECT_TRUE(console.says("Live"));
    EXPECT_EQ(console.feed.state().lastCommit->record.step, 5u);
}

TEST_F(Attach, OverTcpWithoutATokenCauseAndRemedyAreOnScreen) {
    serve(tcpOptions());
    attach(address(), "");
    ASSERT_TRUE(waitFor([&] { return link() == ui::Link::kFailed; }));
    EXPECT_TRUE(console.says("none was sent"));
    EXPECT_TRUE(console.says("token-file"));
    EXPECT_FALSE(console.actions.find("file.retry")->isEnabled());
}

TEST_F(Attach, OverTcpWithAWrongTokenCauseAndRemedyAreOnScreen) {
    serve(tcpOptions());
    attach(address(), written("wrong", "0123456789abcdef0123456789abcdef\n"));
    ASSERT_TRUE(waitFor([&] { return link() == ui::Link::kFailed; }));
    const client::Failure& failure = *console.session->status().failure;
    EXPECT_EQ(failure.code, client::FailureCode::kToken);
    EXPECT_TRUE(console.says(QString::fromStdString(failure.cause).toHtmlEscaped()));
    EXPECT_TRUE(console.says(QString::fromStdString(failure.remedy).toHtmlEscaped()));
}

TEST_F(Attach, AViewerSeesTheRunAndCannotAct) {
    access::AccessList list;
    list.put({"bob", access::Role::kViewer, false, {sha256Hex("the-token-of-bob")}, "", ""});
    ASSERT_TRUE(writeDurably(diskFiles(), dir_ + "/access.toml", list.text()).ok());
    service::ServerOptions options = tcpOptions();
    options.access = dir_ + "/access.toml";
    serve(options);
    attach(address(), written("bob", "the-token-of-bob\n"));
    ASSERT_TRUE(waitFor([&] { return console.feed.hasRun(); }));
    EXPECT_TRUE(console.says("as bob (viewer)"));
    EXPECT_FALSE(console.actions.find("job.pause")->isEnabled());
}

TEST_F(Attach, ACertificateThatEndsWithinAWeekIsSaid) {
    const int64_t now = clock_.unixNs() / kSecond;
    const auto authority = access::Authority::init(dir_ + "/authority", "Test", now);
    ASSERT_TRUE(authority.ok()) << authority.status();
    access::AccessList list;
    list.put({"anna", access::Role::kOperator, false, {}, "", ""});
    ASSERT_TRUE(writeDurably(diskFiles(), dir_ + "/access.toml", list.text()).ok());
    ASSERT_TRUE(authority->issue("anna", {}, 30, now, dir_ + "/anna").ok());
    for (const int days : {30, 3}) {
        std::filesystem::remove_all(dir_ + "/daemon");
        ASSERT_TRUE(authority->issue("daemon", {"127.0.0.1"}, days, now, dir_ + "/daemon").ok());
        service::ServerOptions options = tcpOptions();
        options.access = dir_ + "/access.toml";
        options.certs = dir_ + "/daemon";
        serve(options);
        attach(address(), "", dir_ + "/anna");
        ASSERT_TRUE(waitFor([&] { return console.says("as anna (operator)"); }));
        EXPECT_EQ(console.says("Its certificate ends in"), days == 3);
    }
    ASSERT_EQ(ui::Recents(*console.settings).list().front().certs.toStdString(), dir_ + "/anna");
}

TEST_F(Attach, AnAddressWithoutEncryptionIsSaidToBeThat) {
    service::ServerOptions options = tcpOptions("0.0.0.0:0");
    options.insecure = true;
    serve(options);
    attach("127.0.0.1" + address().mid(address().lastIndexOf(u':')), tokenFile());
    ASSERT_TRUE(waitFor([&] { return console.feed.hasRun(); }));
    EXPECT_TRUE(console.says("Not encrypted"));
    EXPECT_TRUE(console.actions.find("job.pause")->isEnabled());
}

TEST_F(Attach, ATokenFileThatIsNotThereIsNamed) {
    serve(tcpOptions());
    attach(address(), dir_ + "/none");
    ASSERT_TRUE(waitFor([&] { return link() == ui::Link::kFailed; }));
    EXPECT_TRUE(console.says("/none"));
}

TEST_F(Attach, ARunOnScreenStaysUntilTheOtherDaemonAnswers) {
    serve(tcpOptions());
    attach(address(), tokenFile());
    ASSERT_TRUE(waitFor([&] { return console.feed.hasRun(); }));
    const QString here = address();
    for (const auto& [wrong, token, words] :
         {std::tuple("unix:" + QString::fromStdString(dir_) + "/nobody.sock", std::string(),
                     QStringLiteral("Nobody answers at unix:")),
          std::tuple(here, written("wrong", "0123456789abcdef0123456789abcdef\n"),
                     QStringLiteral("not this daemon"))}) {
        attach(wrong, token);
        ASSERT_TRUE(waitFor([&] { return console.says(words); })) << wrong.toStdString();
        EXPECT_EQ(link(), ui::Link::kLive);
        EXPECT_EQ(console.session->status().target, here);
        EXPECT_EQ(ui::Recents(*console.settings).list().front().tokenFile.toStdString(),
                  tokenFile())
            << "what did not answer is not remembered";
    }
    serve(unixOptions());
    const QString there = "unix:" + QString::fromStdString(socket());
    attach(there, "");
    EXPECT_TRUE(waitFor(
        [&] { return console.session->status().target == there && link() == ui::Link::kLive; }));
}

TEST_F(Attach, TheTokenItselfIsStoredNowhere) {
    serve(tcpOptions());
    std::string token;
    std::ifstream(tokenFile()) >> token;
    attach(address(), tokenFile());
    ASSERT_TRUE(waitFor([&] { return link() == ui::Link::kLive; }));
    console.settings->sync();
    std::ifstream ini(console.settings->fileName().toStdString());
    const std::string kept{std::istreambuf_iterator<char>(ini), {}};
    EXPECT_NE(kept.find(address().toStdString()), std::string::npos);
    ASSERT_FALSE(token.empty());
    EXPECT_EQ(kept.find(token), std::string::npos);
}

TEST_F(Attach, ALostConnectionCountsDownAndComesBackByItself) {
    serve(unixOptions());
    attach("unix:" + QString::fromStdString(socket()), "");
    ASSERT_TRUE(waitFor([&] { return console.feed.hasRun(); }));
    server_.reset();
    ASSERT_TRUE(waitFor([&] { return console.says("Next try in"); }));
    // The screen keeps its content, and no action is enabled.
    EXPECT_TRUE(console.feed.hasRun());
    EXPECT_FALSE(console.actions.find("job.pause")->isEnabled());
    EXPECT_TRUE(console.actions.find("file.retry")->isEnabled());
    EXPECT_NE(console.named("Retry the connection now"), nullptr);
    serve(unixOptions());
    ASSERT_TRUE(waitFor([&] { return link() == ui::Link::kLive && console.says("Live"); }));
    EXPECT_TRUE(console.actions.find("job.pause")->isEnabled());
    EXPECT_EQ(console.named("Retry the connection now"), nullptr);
}

TEST(AttachVersion, AForeignVersionIsSaidWithItsRemedyAndNotRetried) {
    test::Console console;
    console.session->attach("unix:/tmp/fake.sock");
    console.log->jobs.onDisconnected(
        {client::FailureCode::kVersion, "Cannot work together",
         "It speaks API version 9, this program version 1.", "Update the console.", false},
        {});
    ASSERT_TRUE(
        QTest::qWaitFor([&] { return console.session->status().link == ui::Link::kFailed; }));
    EXPECT_TRUE(console.says("Cannot work together"));
    EXPECT_TRUE(console.says("API version 9"));
    EXPECT_TRUE(console.says("Update the console."));
    EXPECT_EQ(console.named("Retry the connection now"), nullptr);
}

TEST(AttachCountdown, TheSecondsGoDownOnScreen) {
    test::Console console(3);
    console.log->jobs.onDisconnected(
        {client::FailureCode::kUnreachable, "Lost", "nobody listens", "start it", true},
        std::chrono::steady_clock::now() + std::chrono::seconds(30));
    const auto shown = [&] {
        for (const QLabel* label : console.window->findChildren<QLabel*>())
            if (label->isVisible() && label->text().contains("Next try in")) return label->text();
        return QString();
    };
    ASSERT_TRUE(QTest::qWaitFor([&] { return !shown().isEmpty(); }));
    const QString first = shown();
    EXPECT_TRUE(QTest::qWaitFor([&] { return shown() != first; }));
}

}  // namespace
}  // namespace bulkhead::testing
