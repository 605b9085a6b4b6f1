"""What a decision of the learned router costs in CPU time: features, heads, trees and calibration together."""
