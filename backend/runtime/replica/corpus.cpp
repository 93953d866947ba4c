// SPDX-License-Identifier: Apache-2.0
#include "backend/runtime/replica/corpus.h"

#include <xxhash.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <utility>

#include "absl/strings/str_cat.h"

namespace bulkhead::runtime {
namespace {

namespace fs = std::filesystem;

constexpr size_t kTextProbe = 8192;

uint64_t mix(uint64_t x) {
    x ^= x >> 33;
    x *= 0xff51afd7ed558ccdull;
    x ^= x >> 33;
    x *= 0xc4ceb9fe1a85ec53ull;
    return x ^ (x >> 33);
}

absl::Status unreadable(const std::string& domain, const fs::path& path, const std::string& why) {
    return absl::InvalidArgumentError(absl::StrCat("domain \"", domain, "\": ", path.string(), ": ",
                                                   why,
                                                   "; name text files or folders of them that can "
                                                   "be read"));
}

absl::StatusOr<std::string> readFile(const std::string& domain, const fs::path& path) {
    std::ifstream in(path, std::ios::binary);
    if (!in) return unreadable(domain, path, std::strerror(errno));
    std::string text((std::istreambuf_iterator<char>(in)), std::istreambuf_iterator<char>());
    if (in.bad()) return unreadable(domain, path, "reading failed");
    return text;
}

bool looksBinary(std::string_view text) {
    return text.substr(0, kTextProbe).find('\0') != std::string_view::npos;
}

absl::Status filesBelow(const std::string& domain, const fs::path& folder,
                        std::vector<fs::path>* out) {
    std::error_code error;
    for (auto it = fs::recursive_directory_iterator(folder, error);
         !error && it != fs::recursive_directory_iterator(); it.increment(error))
        if (it->is_regular_file(error)) out->push_back(it->path());
    if (error) return unreadable(domain, folder, error.message());
    std::sort(out->begin(), out->end());
    return absl::OkStatus();
}

absl::Status appendFolder(const std::string& domain, const fs::path& folder, std::string* text,
                          std::vector<std::string>* leftOut) {
    std::vector<fs::path> files;
    if (absl::Status s = filesBelow(domain, folder, &files); !s.ok()) return s;
    const size_t before = text->size();
    for (const fs::path& file : files) {
        absl::StatusOr<std::string> content = readFile(domain, file);
        if (!content.ok()) return content.status();
        if (content->empty())
            leftOut->push_back(absl::StrCat(file.string(), ": empty"));
        else if (looksBinary(*content))
            leftOut->push_back(absl::StrCat(file.string(), ": not text"));
        else
            *text += *content;
    }
    if (text->size() == before) return unreadable(domain, folder, "no text in this folder");
    return absl::OkStatus();
}

absl::Status appendPath(const std::string& domain, const fs::path& path, std::string* text,
                        std::vector<std::string>* leftOut) {
    std::error_code error;
    const fs::file_status kind = fs::status(path, error);
    if (!fs::exists(kind)) return unreadable(domain, path, "no such file or folder");
    if (fs::is_directory(kind)) return appendFolder(domain, path, text, leftOut);
    absl::StatusOr<std::string> content = readFile(domain, path);
    if (!content.ok()) return content.status();
    if (content->empty()) return unreadable(domain, path, "the file is empty");
    *text += *content;
    return absl::OkStatus();
}

}  // namespace

uint64_t permute(uint64_t index, uint64_t size, uint64_t key) {
    const int half = std::max(1, (static_cast<int>(std::bit_width(size - 1)) + 1) / 2);
    const uint64_t mask = (1ull << half) - 1;
    do {
        uint64_t left = index >> half;
        uint64_t right = index & mask;
        for (uint64_t round = 0; round < 4; ++round) {
            const uint64_t next = left ^ (mix(right ^ mix(key + round)) & mask);
            left = right;
            right = next;
        }
        index = (left << half) | right;
    } while (index >= size);
    return index;
}

absl::StatusOr<std::unique_ptr<Corpus>> Corpus::load(const std::vector<model::DomainSpec>& domains,
                                                     uint32_t sequenceLength, uint64_t seed) {
    if (domains.empty())
        return absl::InvalidArgumentError(
            "the job names no domain of training text; add [[domains]]");
    std::unique_ptr<Corpus> corpus(new Corpus);
    corpus->seed_ = seed;
    corpus->sequenceLength_ = sequenceLength;
    uint64_t hash = 0;
    for (const model::DomainSpec& spec : domains) {
        Domain domain;
        domain.name = spec.name;
        for (const std::string& path : spec.paths)
            if (absl::Status s = appendPath(spec.name, path, &domain.text, &corpus->leftOut_);
                !s.ok())
                return s;
        if (domain.text.size() <= sequenceLength)
            return absl::InvalidArgumentError(absl::StrCat(
                "domain \"", spec.name, "\" (", spec.paths.empty() ? "no path" : spec.paths[0],
                ") holds ", domain.text.size(), " bytes, one sample needs ", sequenceLength + 1,
                "; add text or shorten sequence_length"));
        domain.windows = (domain.text.size() - 1) / sequenceLength;
        hash = XXH3_64bits_withSeed(domain.name.data(), domain.name.size(), hash);
        hash = XXH3_64bits_withSeed(domain.text.data(), domain.text.size(), hash);
        corpus->domains_.push_back(std::move(domain));
    }
    corpus->hash_ = hash;
    return corpus;
}

Corpus::~Corpus() = default;

uint64_t Corpus::offsetOf(uint32_t domain, uint64_t index) const {
    const uint64_t windows = domains_[domain].windows;
    const uint64_t pass = index / windows;
    const uint64_t key = mix(seed_ + 0x9e3779b97f4a7c15ull * (domain + 1)) ^ mix(~pass);
    // Windows do not divide the text: each pass begins at another byte, so that no tail stays
    // unread.
    const uint64_t slack = (domains_[domain].text.size() - 1) % sequenceLength_;
    return key % (slack + 1) + permute(index % windows, windows, key) * sequenceLength_;
}

absl::StatusOr<Sample> Corpus::sample(uint32_t domain, uint64_t index) const {
    if (domain >= domains_.size())
        return absl::InvalidArgumentError(
            absl::StrCat("a lease names domain ", domain, " but the corpus has ", domains_.size()));
    const std::string_view text = domains_[domain].text;
    return Sample{domain, index, text.substr(offsetOf(domain, index), sequenceLength_ + 1)};
}

std::vector<std::pair<uint32_t, uint64_t>> samplesOfShard(const std::vector<SampleRange>& ranges,
                                                          uint32_t shard, uint32_t shards) {
    std::vector<std::pair<uint32_t, uint64_t>> mine;
    uint64_t at = 0;
    for (const SampleRange& range : ranges)
        for (uint64_t i = range.begin; i < range.end; ++i, ++at)
            if (at % shards == shard) mine.emplace_back(range.domain, i);
    return mine;
}

uint64_t microBatches(const std::vector<SampleRange>& ranges, uint32_t shards,
                      uint32_t microBatch) {
    uint64_t samples = 0;
    for (const SampleRange& range : ranges) samples += range.end - range.begin;
    const uint64_t perShard = (samples + shards - 1) / shards;
    return (perShard + microBatch - 1) / microBatch;
}

}  // namespace bulkhead::runtime
