// SPDX-License-Identifier: Apache-2.0
#include "backend/planner/import/balance_log.h"

#include <algorithm>
#include <optional>
#include <string>

#include "backend/model/names.h"
#include "backend/model/parse_number.h"

namespace bulkhead::planner {
namespace {

using model::concat;

constexpr std::string_view kVllm = "EPLB step: ", kSglang = "[Expert Balancedness] ";

/// The number after "NAME=" in a line, up to a blank or comma.
std::optional<double> valueOf(std::string_view line, std::string_view name) {
    const size_t at = line.find(name);
    if (at == std::string_view::npos) return std::nullopt;
    line.remove_prefix(at + name.size());
    line = line.substr(0, line.find_first_of(" ,\r"));
    return model::parseNumber<double>(line);
}

bool isShare(const std::optional<double>& value) {
    return value && *value >= 0 && *value <= 1;
}

std::optional<BalanceSample> vllmSample(std::string_view rest) {
    BalanceSample out;
    out.engine = "vLLM";
    const auto mean = valueOf(rest, "avg_tokens="), most = valueOf(rest, "max_tokens=");
    const auto share = valueOf(rest, "balancedness=");
    if (!mean || !most || *mean < 0 || *most < 0 || !isShare(share)) return std::nullopt;
    out.meanTokens = *mean;
    out.maxTokens = *most;
    out.balancedness = *share;
    const std::string_view head = rest.substr(0, rest.find(':'));
    const std::string_view number = head.substr(0, head.find(' '));
    out.step = model::parseNumber<uint64_t>(number);
    constexpr std::string_view kModel = " for model ";
    if (const size_t at = head.find(kModel); at != std::string_view::npos)
        out.model = head.substr(at + kModel.size());
    return out;
}

std::optional<BalanceSample> sglangSample(std::string_view rest) {
    BalanceSample out;
    out.engine = "SGLang";
    const auto share = valueOf(rest, "current_pass_balancedness=");
    const auto pass = valueOf(rest, "forward_pass_id=");
    if (!isShare(share)) return std::nullopt;
    out.balancedness = *share;
    if (pass && *pass >= 0 && *pass < 9e15) out.step = static_cast<uint64_t>(*pass);
    return out;
}

}  // namespace

bool looksLikeBalanceLog(std::string_view bytes) {
    return bytes.find(kVllm) != std::string_view::npos ||
           bytes.find(kSglang) != std::string_view::npos;
}

absl::StatusOr<Recording> readBalanceLog(std::string_view bytes, std::string_view file) {
    Recording out;
    size_t number = 0, unread = 0, firstUnread = 0;
    for (size_t at = 0; at < bytes.size();) {
        const size_t end = std::min(bytes.find('\n', at), bytes.size());
        const std::string_view line = bytes.substr(at, end - at);
        at = end + 1;
        ++number;
        const size_t vllm = line.find(kVllm), sglang = line.find(kSglang);
        if (vllm == std::string_view::npos && sglang == std::string_view::npos) continue;
        const auto sample = vllm != std::string_view::npos
                                ? vllmSample(line.substr(vllm + kVllm.size()))
                                : sglangSample(line.substr(sglang + kSglang.size()));
        if (sample) {
            out.balance.push_back(*sample);
        } else {
            if (unread++ == 0) firstUnread = number;
        }
    }
    if (out.balance.empty())
        return absl::InvalidArgumentError(
            concat(file, ": no line tells a balancedness that can be read",
                   unread > 0 ? concat(" (line ", firstUnread, " tries)") : ""));
    out.source = concat(file, ", balancedness of a server's log");
    if (unread > 0)
        out.notes.push_back(
            concat(unread, " lines could not be read, the first is line ", firstUnread, "."));
    return out;
}

}  // namespace bulkhead::planner
