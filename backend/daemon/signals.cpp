// SPDX-License-Identifier: Apache-2.0
#include "backend/daemon/signals.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <unistd.h>

#include <cerrno>

namespace bulkhead::daemon {
namespace {

int writeEnd = -1;  // a handler can reach nothing else

void note(int number) {
    const int saved = errno;
    const auto byte = static_cast<unsigned char>(number);
    (void)!::write(writeEnd, &byte, 1);
    errno = saved;
}

}  // namespace

Signals::Signals(std::initializer_list<int> numbers) {
    int ends[2];
    if (::pipe2(ends, O_CLOEXEC | O_NONBLOCK) != 0) return;
    read_ = ends[0];
    writeEnd = ends[1];
    struct sigaction action {};
    action.sa_handler = note;
    action.sa_flags = SA_RESTART;
    for (const int number : numbers) ::sigaction(number, &action, nullptr);
    ::signal(SIGPIPE, SIG_IGN);
}

Signals::~Signals() {
    ::close(read_);
}

int Signals::next(int ms) {
    pollfd entry{read_, POLLIN, 0};
    if (::poll(&entry, 1, ms) <= 0) return 0;
    unsigned char number = 0;
    return ::read(read_, &number, 1) == 1 ? number : 0;
}

}  // namespace bulkhead::daemon
