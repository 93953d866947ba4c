// SPDX-License-Identifier: Apache-2.0
#include "backend/daemon/report.h"

#include <spdlog/spdlog.h>
#include <unistd.h>

#include <cstdio>

namespace bulkhead::daemon {

void Report::ready() {
    say("ready\n");
}

int Report::failed(const absl::Status& status) {
    std::string cause(status.message());
    std::string remedy;
    if (const size_t at = cause.rfind("; "); at != std::string::npos) {
        remedy = cause.substr(at + 2);
        cause.resize(at);
    }
    for (std::string* text : {&cause, &remedy})
        for (char& c : *text)
            if (c == '\n') c = ' ';
    const std::string line = cause + (remedy.empty() ? "" : "; ") + remedy;
    if (jsonLog_)
        spdlog::critical("{}", line);
    else
        std::fprintf(stderr, "bulkheadd: %s\n", line.c_str());
    say("error\n" + cause + "\n" + remedy + "\n");
    return kBadStart;
}

void Report::say(const std::string& text) {
    if (fd_ < 0) return;
    // Nobody may be listening any more; that is their affair.
    (void)!::write(fd_, text.data(), text.size());
    ::close(fd_);
    fd_ = -1;
}

}  // namespace bulkhead::daemon
