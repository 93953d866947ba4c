// SPDX-License-Identifier: GPL-3.0-only
#include "app/session/recents.h"

#include <algorithm>

namespace bulkhead::ui {
namespace {

const QString kGroup = QStringLiteral("recents");

}  // namespace

QVector<Recent> Recents::list() const {
    QVector<Recent> list;
    const int count = settings_.beginReadArray(kGroup);
    for (int i = 0; i < std::min(count, kMost); ++i) {
        settings_.setArrayIndex(i);
        Recent r;
        r.kind = settings_.value("kind").toString() == u"file" ? Recent::Kind::kFile
                                                               : Recent::Kind::kAddress;
        r.target = settings_.value("target").toString();
        r.tokenFile = settings_.value("tokenFile").toString();
        r.certs = settings_.value("certs").toString();
        r.lastStatus = settings_.value("status").toString();
        if (!r.target.isEmpty()) list.push_back(r);
    }
    settings_.endArray();
    return list;
}

void Recents::store(const QVector<Recent>& list) {
    settings_.remove(kGroup);
    settings_.beginWriteArray(kGroup);
    for (int i = 0; i < std::min(static_cast<int>(list.size()), kMost); ++i) {
        settings_.setArrayIndex(i);
        settings_.setValue("kind", list[i].kind == Recent::Kind::kFile ? "file" : "address");
        settings_.setValue("target", list[i].target);
        settings_.setValue("tokenFile", list[i].tokenFile);
        settings_.setValue("certs", list[i].certs);
        settings_.setValue("status", list[i].lastStatus);
    }
    settings_.endArray();
}

void Recents::remember(const Recent& recent) {
    QVector<Recent> all = list();
    all.removeIf([&](const Recent& r) { return r.target == recent.target; });
    all.prepend(recent);
    store(all);
}

void Recents::setStatus(const QString& target, const QString& status) {
    QVector<Recent> all = list();
    for (Recent& r : all)
        if (r.target == target) r.lastStatus = status;
    store(all);
}

void Recents::forget(const QString& target) {
    QVector<Recent> all = list();
    all.removeIf([&](const Recent& r) { return r.target == target; });
    store(all);
}

}  // namespace bulkhead::ui
