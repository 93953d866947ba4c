// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "backend/model/names.h"
#include "tests/planner/memory_files.h"

/// Writes files as torch.save does, so that tests need no Python: pickle protocol 2 in a stored
/// zip.
namespace bulkhead::planner {

/// Opcodes of a pickle, one after another.
struct PickleText {
    std::string bytes = "\x80\x02";

    PickleText& raw(std::string_view more) {
        bytes += more;
        return *this;
    }
    PickleText& text(std::string_view value) {
        bytes +=
            'X' + bytesOf<uint32_t>({static_cast<uint32_t>(value.size())}) + std::string(value);
        return *this;
    }
    PickleText& integer(int64_t value) {
        bytes += 'J' + bytesOf<int32_t>({static_cast<int32_t>(value)});
        return *this;
    }
    PickleText& tuple(const std::vector<uint64_t>& values) {
        bytes += '(';
        for (const uint64_t value : values) integer(static_cast<int64_t>(value));
        bytes += 't';
        return *this;
    }
    /// A tensor over storage `key`, row by row.
    PickleText& tensor(std::string_view type, std::string_view key,
                       const std::vector<uint64_t>& shape) {
        uint64_t size = 1;
        std::vector<uint64_t> strides(shape.size(), 1);
        for (size_t i = shape.size(); i-- > 0;) {
            strides[i] = size;
            size *= shape[i];
        }
        bytes += "ctorch._utils\n_rebuild_tensor_v2\n((";
        text("storage");
        bytes += model::concat("ctorch\n", type, "\n");
        text(key).text("cpu").integer(static_cast<int64_t>(size));
        bytes += "tQ";
        integer(0).tuple(shape).tuple(strides);
        bytes +=
            "\x89"
            "ccollections\nOrderedDict\n)RtR";
        return *this;
    }
    std::string done() const { return bytes + '.'; }
};

inline uint32_t crcOf(std::string_view bytes) {
    uint32_t c = ~0u;
    for (const char byte : bytes) {
        c ^= static_cast<uint8_t>(byte);
        for (int bit = 0; bit < 8; ++bit) c = (c >> 1) ^ ((c & 1) != 0 ? 0xedb88320u : 0u);
    }
    return ~c;
}

/// A zip of stored entries.
inline std::string zipOf(const std::vector<std::pair<std::string, std::string>>& entries) {
    std::string out, directory;
    for (const auto& [name, data] : entries) {
        const auto offset = static_cast<uint32_t>(out.size());
        const std::string sizes =
            bytesOf<uint32_t>({crcOf(data), static_cast<uint32_t>(data.size()),
                               static_cast<uint32_t>(data.size())}) +
            bytesOf<uint16_t>({static_cast<uint16_t>(name.size()), 0});
        const std::string common = bytesOf<uint16_t>({0, 0, 0, 0, 0});
        out += "PK\x03\x04" + common + sizes + name + data;
        directory += "PK\x01\x02" + bytesOf<uint16_t>({0}) + common + sizes +
                     bytesOf<uint16_t>({0, 0, 0}) + bytesOf<uint32_t>({0, offset}) + name;
    }
    const auto count = static_cast<uint16_t>(entries.size());
    return out + directory + "PK\x05\x06" + bytesOf<uint16_t>({0, 0, count, count}) +
           bytesOf<uint32_t>(
               {static_cast<uint32_t>(directory.size()), static_cast<uint32_t>(out.size())}) +
           bytesOf<uint16_t>({0});
}

/// A torch.save file: the pickle and its storages by key.
inline std::string torchFile(const PickleText& pickle,
                             const std::map<std::string, std::string>& storages) {
    std::vector<std::pair<std::string, std::string>> entries{{"dump/data.pkl", pickle.done()}};
    for (const auto& [key, data] : storages) entries.emplace_back("dump/data/" + key, data);
    entries.emplace_back("dump/version", "3\n");
    return zipOf(entries);
}

/// A stat dump: 3 steps (the last one unused) x 3 layers (the first dense) x 2 experts.
inline std::string statDump() {
    PickleText pickle;
    pickle.raw("}(").text("rank").integer(0).text("logical_count");
    pickle.tensor("IntStorage", "0", {3, 3, 2})
        .text("average_utilization_rate_over_window")
        .raw("Nu");
    return torchFile(pickle, {{"0", bytesOf<int32_t>({0, 0, 1, 2, 3, 4, 0, 0, 5, 6, 7, 8,  //
                                                      0, 0, 0, 0, 0, 0})}});
}

/// A per_pass dump of one rank: 1 pass, 1 layer, 3 slots of 2 experts (0, 1, 0).
inline std::string passDump(int64_t rank, const std::vector<int32_t>& counts) {
    PickleText pickle;
    pickle.raw("}(").text("records").raw("](}(").text("forward_pass_id").integer(7);
    pickle.text("rank").integer(rank).text("global_physical_count");
    pickle.tensor("IntStorage", "0", {1, 3}).raw("ue");
    pickle.text("last_physical_to_logical_map").tensor("LongStorage", "1", {1, 3}).raw("u");
    return torchFile(pickle, {{"0", bytesOf(counts)}, {"1", bytesOf<int64_t>({0, 1, 0})}});
}

/// A per_token dump: 2 layers (the first dense), 4 slots of 3 experts, top-2 padded to 3; a prefill
/// pass of 2 + 1 tokens and a decode pass of 2, the last of them padding.
inline std::string tokenDump(int64_t rank = 0) {
    const std::vector<int32_t> dense(9, -1), prefill{0, 1, -1, 3, 2, -1, 1, 2, -1},
        denseDecode(6, -1), decode{2, 3, -1, -1, -1, -1};
    std::vector<int32_t> first = dense, second = denseDecode;
    first.insert(first.end(), prefill.begin(), prefill.end());
    second.insert(second.end(), decode.begin(), decode.end());
    PickleText pickle;
    pickle.raw("}(").text("records").raw("](");
    pickle.raw("}(").text("forward_pass_id").integer(0).text("rank").integer(rank);
    pickle.text("extend_seq_lens").raw("](").integer(2).integer(1).raw("e");
    pickle.text("forward_mode").integer(1).text("topk_ids_of_layer");
    pickle.tensor("IntStorage", "0", {2, 3, 3}).raw("u");
    pickle.raw("}(").text("forward_pass_id").integer(1).text("rank").integer(rank);
    pickle.text("extend_seq_lens").raw("N").text("forward_mode").integer(2);
    pickle.text("topk_ids_of_layer").tensor("IntStorage", "1", {2, 2, 3}).raw("ue");
    pickle.text("last_physical_to_logical_map").tensor("LongStorage", "2", {2, 4}).raw("u");
    return torchFile(pickle, {{"0", bytesOf(first)},
                              {"1", bytesOf(second)},
                              {"2", bytesOf<int64_t>({0, 1, 2, 0, 0, 1, 2, 0})}});
}

/// A safetensors file of int64 rows.
inline std::string safetensorsFile(
    const std::vector<std::pair<std::string, std::vector<int64_t>>>& rows) {
    std::string header = "{", data;
    for (const auto& [name, row] : rows) {
        header +=
            model::concat(header.size() > 1 ? "," : "", "\"", name,
                          "\":{\"dtype\":\"I64\",\"shape\":[", row.size(), "],\"data_offsets\":[",
                          data.size(), ",", data.size() + row.size() * 8, "]}");
        data += bytesOf(row);
    }
    header += "}";
    return bytesOf<uint64_t>({header.size()}) + header + data;
}

}  // namespace bulkhead::planner
