// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "absl/strings/escaping.h"
#include "backend/model/names.h"
#include "tests/planner/torch_writer.h"

/// Small recordings in every form there is a reader for: 2 layers, 4 experts, top-2 unless said.
namespace bulkhead::planner::samples {

/// 2 layers x 3 tokens, [layer, token, k].
inline std::string npyIds() {
    return npyFile("|u1", "(2, 3, 2)", std::string("\0\1\1\2\2\3\3\2\2\1\1\0", 12));
}

inline std::string requestsMeta() {
    return R"({"model":"m","layers":2,"experts":4,"top_k":2,"file":"a.npy",)"
           R"("layout":"uint8 [layer, token, k]","requests":[{"id":"r1","dataset":"d","tokens":2,)"
           R"("prefill":1,"offset":0},{"category":"c","tokens":1}]})";
}

inline std::string domainsMeta() {
    return R"({"model":"m","moe_layers":2,"experts":4,"top_k":2,"layout":"uint8 [layer, token, k]",)"
           R"("domains":{"code":{"file":"a.npy","sequence_lengths":[1,2],"tokens":3}}})";
}

inline std::string countsMeta() {
    return R"({"layers":[0,7],"counts":{"m1":{"a":[[1,2],[3,4]],"b":[[5,6],[7,8]]}}})";
}

inline std::string metaInfo() {
    return R"({"num_experts":4,"num_experts_per_token":2})";
}

inline std::string ranksOf(int64_t more) {
    return safetensorsFile({{"5_3", {1 + more, 2, 3, 4}},
                            {"5_4", {5, 6, 7, 8}},
                            {"6_3", {1, 0, 0, 0}},
                            {"6_4", {0, 0, 0, 1}}});
}

/// Prompt of 2 tokens, 2 generated ones of which one was run.
inline std::string vllmResponse() {
    return R"({"id":"cmpl-1","choices":[{"index":0,"routed_experts":[[[0,3],[2,1]]]}],)"
           R"("prompt_routed_experts":[[[0,1],[3,2]],[[1,2],[2,1]]],)"
           R"("usage":{"prompt_tokens":2,"completion_tokens":2}})";
}

/// The same from SGLang: 3 layers, the first dense (zeros).
inline std::string sglangResponse() {
    const std::string ids =
        bytesOf<int32_t>({0, 0, 0, 1, 3, 2, 0, 0, 1, 2, 2, 1, 0, 0, 0, 3, 2, 1});
    return model::concat(R"({"text":"x","meta_info":{"id":"g1","prompt_tokens":2,)",
                         R"("completion_tokens":2,"routed_experts":")", absl::Base64Escape(ids),
                         "\"}}");
}

/// The same from a later vLLM: base64 of an npy file over all tokens.
inline std::string npyResponse() {
    const std::string ids = bytesOf<int16_t>({0, 1, 3, 2, 1, 2, 2, 1, 0, 3, 2, 1});
    return model::concat(R"({"id":"c2","usage":{"prompt_tokens":2,"completion_tokens":2},)",
                         R"("choices":[{"routed_experts":")",
                         absl::Base64Escape(npyFile("<i2", "(3, 2, 2)", ids)), "\"}]}");
}

inline std::string requestLines() {
    return R"({"routing":{"model":"m","layers":2,"experts":4,"top_k":2,"layer_numbers":[3,4]}})"
           "\n"
           R"({"id":"a","domain":"code","prefill":1,"experts":[[[0,1],[3,2]],[[1,2],[2,1]]]})"
           "\n\n"
           R"({"experts":[[[0,3],[2,1]]]})";
}

inline std::string countLines() {
    return R"({"counts":[[1,2],[3,4]],"domain":"code","phase":"prefill"})"
           "\n"
           R"({"counts":[[5,6],[7,8]],"label":"later","phase":"decode"})"
           "\n";
}

/// Counts of a model that has dense layers.
inline std::string headedCountLines() {
    return R"({"counts_of":{"model":"m","layers":2,"experts":2,"top_k":2,"layer_numbers":[3,4],)"
           R"("router_groups":2,"groups_per_token":2}})"
           "\n" +
           countLines();
}

inline std::string routeLines() {
    return R"({"type":"meta","model":"x"})"
           "\n"
           R"({"type":"route","req_id":"q","token_idx":0,"layer":3,"topk_ids":[0,1]})"
           "\n"
           R"({"type":"route","req_id":"q","token_idx":0,"layer":5,"topk_ids":[2,3]})"
           "\n"
           R"({"type":"route","req_id":7,"token_idx":4,"layer":5,"topk_ids":[1,3]})"
           "\n"
           R"({"type":"route","req_id":7,"token_idx":4,"layer":3,"topk_ids":[0,2]})"
           "\n";
}

inline std::string vllmLog() {
    return "INFO 11-21 12:00:00 [core.py:1] starting\n"
           "(EngineCore) INFO EPLB step: avg_tokens=512.00, max_tokens=1024, balancedness=0.5000\n"
           "INFO EPLB step: 100 for model Qwen3: avg_tokens=10.50, max_tokens=14, "
           "balancedness=0.7500, steps until the next rearrangement: 2900\n"
           "INFO EPLB step: 2500: avg_tokens=1024, max_tokens=2048, balancedness=0.5000\n"
           "INFO EPLB step: avg_tokens=5";
}

inline std::string sglangLog() {
    return "[12:00] [Expert Balancedness] forward_pass_id=41 current_pass_balancedness=0.612 "
           "last_10_average_balancedness=0.600 gpu_physical_count_sum=1234\n";
}

/// Placements of 3 experts in 4 slots on 2 devices, as engines have them.
inline std::string sglangPlacement() {
    return R"({"physical_to_logical_map":[[0,1,2,0],[2,1,0,1]]})";
}

inline std::string trtllmPlacement() {
    return "num_slots: 4\nlayer_updates_per_iter: 0\ninitial_global_assignments:\n"
           "  3: [0, 1, 2, 0]\n  4:\n  - 2\n  - 1\n  - 0\n  - 1\n";
}

inline std::string ascendPlacement() {
    return R"({"moe_layer_count":1,"layer_list":[{"layer_id":0,"device_count":2,"device_list":[)"
           R"({"device_id":0,"device_expert":[0,1]},{"device_id":1,"device_expert":[2,0]}]}]})";
}

}  // namespace bulkhead::planner::samples
