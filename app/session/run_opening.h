// SPDX-License-Identifier: GPL-3.0-only
#pragma once

#include <QString>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "app/session/daemon_host.h"
#include "app/session/mailbox.h"
#include "backend/client/client.h"

/// A run that is being read and is not on screen yet. Its owner hears of it by the functions
/// given; `opened` or `failed` is the last thing that happens, and it may be destroyed there.
/// Thread: the GUI's.
namespace bulkhead::ui {

using OpenClient = std::function<client::Result<std::unique_ptr<client::Client>>(client::Options)>;

/// A run of a daemon's history, read to its end as a replay that is paused there.
class RunOpening {
  public:
    struct Opened {
        std::string run;
        std::string replay;  ///< id
        model::ReplayPosition position;
        client::StatePtr state;
    };
    struct Told {
        std::function<void(std::optional<double>)> progressed;  ///< 0..1 that is read
        std::function<void(Opened)> opened;
        std::function<void(client::Failure)> failed;
    };
    RunOpening(std::shared_ptr<client::Client> client, std::string run, Told told);
    /// Gives it up, unless it has been opened.
    ~RunOpening();

  private:
    void watch();
    void seekEnd();
    void deliver();
    void finish();
    void fail(const client::Failure& failure);
    template <class T>
    client::Reply<T> here(std::function<void(client::Result<T>)> answer);

    std::shared_ptr<client::Client> client_;
    Told told_;
    Opened opened_;
    bool atEnd_ = false;
    std::shared_ptr<Mailbox> box_;
    std::unique_ptr<client::Watch> watch_;
    const std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);
};

/// A run file: a private daemon that only reads it, and its newest run.
class FileOpening {
  public:
    struct Opened {
        std::unique_ptr<DaemonHost> daemon;
        std::shared_ptr<client::Client> client;
        client::Options options;
        std::optional<RunOpening::Opened> run;  ///< absent: the file has none
    };
    struct Told {
        std::function<void(std::optional<double>)> progressed;
        std::function<void(Opened)> opened;
        std::function<void(client::Failure)> failed;
    };
    FileOpening(const QString& path, OpenClient openClient, Told told);
    ~FileOpening();

  private:
    void attach(const QString& target);
    void read(std::vector<model::RunInfo> runs);
    void finish(std::optional<RunOpening::Opened> run);
    void fail(const client::Failure& failure);

    OpenClient openClient_;
    Told told_;
    Opened opened_;
    bool starting_ = true;
    std::unique_ptr<RunOpening> run_;
    const std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);
};

}  // namespace bulkhead::ui
