// SPDX-License-Identifier: Apache-2.0
#include "backend/runtime/coordinator/term_file.h"

#include <charconv>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"

namespace bulkhead::runtime {

absl::StatusOr<Term> Term::mint(FileSystem& files, const std::string& dir) {
    auto lock = files.lock(dir + "/term.lock");
    if (absl::IsFailedPrecondition(lock.status()))
        return absl::FailedPreconditionError(absl::StrCat("another coordinator runs the job in ",
                                                          dir, "; stop it first, or attach to it"));
    if (!lock.ok()) return lock.status();

    const std::string path = dir + "/term";
    uint64_t last = 0;
    if (files.exists(path)) {
        auto content = files.read(path);
        if (!content.ok()) return content.status();
        const absl::string_view text = absl::StripAsciiWhitespace(*content);
        const auto [end, ec] = std::from_chars(text.data(), text.data() + text.size(), last);
        if (ec != std::errc() || end != text.data() + text.size())
            return absl::DataLossError(absl::StrCat(
                path, " should hold a number, not \"", text,
                "\"; write a number above every term of this run's commit log into it"));
    }
    Term term(last + 1, *std::move(lock));
    if (absl::Status s = writeDurably(files, path, absl::StrCat(term.number_, "\n")); !s.ok())
        return s;
    return term;
}

}  // namespace bulkhead::runtime
