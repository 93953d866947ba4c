// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "backend/access/audit_log.h"
#include "backend/common/clock.h"
#include "backend/service/backend.h"
#include "backend/service/feed.h"
#include "backend/service/run_library.h"

namespace bulkhead::service {

struct ServerOptions {
    std::string socket;               ///< path of the Unix socket (mode 0600); empty: none
    std::vector<std::string> listen;  ///< TCP: "host:port", or "port" on loopback; 0: any free port
    std::string tokenFile;  ///< of an administrator; made (mode 0600) when not there; empty: none
    std::string access;     ///< access file: who else may call over TCP; empty: nobody
    /// Folder of certificates: TCP is TLS then. Empty: plain text, on loopback addresses.
    std::string certs;
    bool insecure = false;              ///< plain text on other addresses too
    access::AuditLog* audit = nullptr;  ///< null: none is kept; must outlive the server
    Backend* backend = nullptr;         ///< null: read-only
    std::filesystem::path history;      ///< file of runs; empty: none
    RunFolders runFolders;
    std::string build;
    std::string leader;                                  ///< ServerInfo::leader
    std::function<std::vector<std::string>()> standbys;  ///< ServerInfo::standbys; may be empty
    FeedLimits feed;
    /// An export whose reader takes nothing for so long ends.
    std::chrono::milliseconds exportPatience{60'000};
    /// Handler of the Shutdown call; unset: it is refused.
    std::function<absl::Status()> shutdown;
};

/// The gRPC server: the four services, health and reflection. start() returns when it serves.
/// Errors: AlreadyExists when the port or the socket is in use, InvalidArgument for an address that
/// is none, a TCP address that nobody could use or that is not protected, and those of the token
/// file, the access file and the certificates.
/// Thread: one owner. `backend` and the clock must outlive it.
class Server {
  public:
    static absl::StatusOr<std::unique_ptr<Server>> start(ServerOptions options, const Clock& clock);
    /// Ends every call and stream; clients see an outage and dial again.
    ~Server();

    /// "unix:/path", "127.0.0.1:7400", with the ports really bound.
    const std::vector<std::string>& addresses() const;

  private:
    class Impl;
    explicit Server(std::unique_ptr<Impl> impl);
    std::unique_ptr<Impl> impl_;
};

}  // namespace bulkhead::service
