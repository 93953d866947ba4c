// SPDX-License-Identifier: Apache-2.0
#include "backend/runtime/coordinator/term_file.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <cerrno>
#include <charconv>
#include <cstring>
#include <fstream>
#include <utility>

#include "absl/strings/str_cat.h"
#include "backend/runtime/coordinator/durable_file.h"

namespace bulkhead::runtime {

absl::StatusOr<Term> Term::mint(const std::string& dir) {
    const std::string lockPath = dir + "/term.lock";
    const int lock = ::open(lockPath.c_str(), O_CREAT | O_RDWR | O_CLOEXEC, 0600);
    if (lock < 0)
        return absl::UnavailableError(
            absl::StrCat("cannot open ", lockPath, ": ", std::strerror(errno)));
    Term term(0, lock);
    if (::flock(lock, LOCK_EX | LOCK_NB) != 0)
        return absl::FailedPreconditionError(absl::StrCat("another coordinator runs the job in ",
                                                          dir, "; stop it first, or attach to it"));

    const std::string path = dir + "/term";
    std::ifstream file(path);
    std::string text;
    uint64_t last = 0;
    if (file >> text) {
        const auto [end, ec] = std::from_chars(text.data(), text.data() + text.size(), last);
        if (ec != std::errc() || end != text.data() + text.size())
            return absl::DataLossError(absl::StrCat(
                path, " should hold a number, not \"", text,
                "\"; write a number above every term of this run's commit log into it"));
    } else if (file.is_open()) {
        return absl::DataLossError(absl::StrCat(
            path, " is empty; write a number above every term of this run's commit log into it"));
    }
    term.number_ = last + 1;
    if (absl::Status s = writeDurably(path, absl::StrCat(term.number_, "\n")); !s.ok()) return s;
    return term;
}

Term::Term(Term&& other) noexcept : number_(other.number_), lock_(std::exchange(other.lock_, -1)) {}

Term& Term::operator=(Term&& other) noexcept {
    std::swap(number_, other.number_);
    std::swap(lock_, other.lock_);
    return *this;
}

Term::~Term() {
    if (lock_ >= 0) ::close(lock_);
}

}  // namespace bulkhead::runtime
