// SPDX-License-Identifier: GPL-3.0-only
#pragma once

#include <QWidget>
#include <vector>

namespace bulkhead::ui {

struct Tokens;

/// Parts of something as one bar, the greatest first, with the name and the share of each below it
/// in as many columns as fit. Parts of nothing are left out.
class ShareBar final : public QWidget {
    Q_OBJECT
  public:
    struct Part {
        QString name;
        double share = 0;  ///< 0..1, of whatever all is
        QColor Tokens::*color = nullptr;
    };

    explicit ShareBar(const QString& accessibleName, QWidget* parent = nullptr);
    /// `nothing`: what stands there when no part is left.
    void set(std::vector<Part> parts, const QString& nothing);

    bool hasHeightForWidth() const override { return true; }
    int heightForWidth(int width) const override;
    QSize sizeHint() const override;
    QSize minimumSizeHint() const override;

  protected:
    void paintEvent(QPaintEvent* event) override;

  private:
    int cellWidth() const;
    int columns(int width) const;

    std::vector<Part> parts_;
    QString nothing_;
};

}  // namespace bulkhead::ui
